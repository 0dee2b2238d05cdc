package fleet

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/fleet/stream"
)

// The keys below the prefix of the fleet.
const (
	fleetKey         = "fleet"
	headKey          = "head"
	objectPrefix     = "object/"
	sealedPrefix     = "sealed/" // NAME/ID, see SharedKey
	sourcePrefix     = "source/"
	trialPrefix      = "trial/"
	rolloutPrefix    = "rollout/"
	sharedEnd        = "trial0" // the first key behind all that boxes share
	bundlePrefix     = "bundle/"
	alivePrefix      = "alive/"
	boxPrefix        = "box/"
	turnKey          = "turn/writer"
	sourceTurnPrefix = "turn/source/"
)

// format is the newest one that this program reads, and that of a fleet that it makes. A fleet has the format that all
// of its boxes read, and is raised to a newer one by Upgrade.
const format = rolloutFormat

// The formats, by their additions. Format 1 has objects and sources.
const (
	sealedFormat  = 2 // Secrets, sealed, and trials
	accessFormat  = 3 // the key of tokens and the CA, sealed; heads say their format
	rolloutFormat = 4 // rollouts: with an older program a box would program changes before its step
)

// needsFormat returns an error if a fleet has a lower format than a feature needs.
func needsFormat(format, least int, feature string) error {
	if format >= least {
		return nil
	}
	return &engine.AwayError{Why: fmt.Sprintf("the fleet has format %d, which has no %s: run `svcctl fleet upgrade` when all boxes have a version that reads format %d", format, feature, least)}
}

// contentPrefixes begin the keys that the digest of the head covers.
var contentPrefixes = []string{objectPrefix, rolloutPrefix, sealedPrefix, sourcePrefix, trialPrefix}

// isShared reports whether all boxes have a key in common.
func isShared(key string) bool { return key == headKey || isContent(key) }

// isContent reports whether the digest of the head covers a key.
func isContent(key string) bool {
	return slices.ContainsFunc(contentPrefixes, func(prefix string) bool { return strings.HasPrefix(key, prefix) })
}

// operation puts or removes an object. Of a commit, no two are of one key.
type operation = stream.Op

// sum is a checksum of a pair, or the exclusive or of those of all pairs.
type sum [16]byte

func sumOf(key string, value []byte) sum {
	h := sha256.New()
	h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(key)))) // writes to a hash never fail
	h.Write([]byte(key))
	h.Write(value)
	return sum(h.Sum(nil)[:len(sum{})])
}

func (s *sum) toggle(other sum) {
	for i := range s {
		s[i] ^= other[i]
	}
}

// MarshalText implements encoding.TextMarshaler.
func (s sum) MarshalText() ([]byte, error) { return []byte(hex.EncodeToString(s[:])), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *sum) UnmarshalText(text []byte) error {
	b, err := hex.DecodeString(string(text))
	if err != nil || len(b) != len(s) {
		return fmt.Errorf("%q is no digest", text)
	}
	copy(s[:], b)
	return nil
}

// content is which objects there are, by their checksums.
type content struct {
	sums   map[string]sum
	digest sum
}

func newContent() *content { return &content{sums: map[string]sum{}} }

func (c *content) put(key string, value []byte) {
	c.delete(key)
	s := sumOf(key, value)
	c.sums[key] = s
	c.digest.toggle(s)
}

func (c *content) delete(key string) {
	if s, has := c.sums[key]; has {
		c.digest.toggle(s)
		delete(c.sums, key)
	}
}

// after is the number of objects and the digest that operations lead to.
func (c *content) after(ops []operation) (objects int, digest sum) {
	objects, digest = len(c.sums), c.digest
	for i := range ops {
		if before, had := c.sums[ops[i].Key]; had {
			digest.toggle(before)
			objects--
		}
		if !ops[i].Remove {
			digest.toggle(sumOf(ops[i].Key, ops[i].Value))
			objects++
		}
	}
	return objects, digest
}

func (c *content) apply(ops []operation) {
	for i := range ops {
		if ops[i].Remove {
			c.delete(ops[i].Key)
		} else {
			c.put(ops[i].Key, ops[i].Value)
		}
	}
}

// head is one commit, as all boxes see it.
type head struct {
	Revision uint64 `json:"revision"`
	ID       string `json:"id"`
	// Previous is the ID of the head before.
	Previous string `json:"previous,omitempty"`
	Box      string `json:"box"`
	// Epoch counts how often an operator declared this content valid.
	Epoch uint64 `json:"epoch,omitempty"`
	// Objects and Digest are of all objects after this commit.
	Objects int `json:"objects"`
	Digest  sum `json:"digest"`
	// Bundle names the parts that this commit consists of, of which there are Parts.
	Bundle string `json:"bundle,omitempty"`
	Parts  int    `json:"parts,omitempty"`
	// Format is that of the fleet; 0: lower than 3. A program that does not read it makes no head that follows
	// on this one.
	Format int `json:"format,omitempty"`
	// Note is the store's description of the commit. That of a bundle is in the bundle.
	Note json.RawMessage `json:"note,omitempty"`

	mod int64 // the modification revision of the key
	// text is the value of the key as it was read or written; "": it is not known.
	text string
}

func (h *head) encode() (string, error) {
	text, err := json.Marshal(h)
	if err != nil {
		return "", fmt.Errorf("encode the head of the fleet: %w", err)
	}
	h.text = string(text)
	return h.text, nil
}

// next returns a head that follows on h, with the same objects.
func (h *head) next(box string) *head {
	n := *h
	n.Revision, n.ID, n.Previous, n.Box, n.Note = h.Revision+1, newID(), h.ID, box, nil
	return &n
}

// newID is a random identifier.
func newID() string {
	var b [8]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// settings is the value of fleetKey.
type settings struct {
	ID     string `json:"id"`
	Format int    `json:"format"`
	// Settings has the settings that all boxes must have in common; nil until the first box has
	// joined.
	Settings json.RawMessage `json:"settings,omitempty"`
}

func decodeSettings(value []byte) (*settings, error) {
	s := &settings{}
	if err := json.Unmarshal(value, s); err != nil {
		return nil, fmt.Errorf("read the settings of the fleet: %w", err)
	}
	return s, nil
}

// splitKey gives the name and the ID in the key of a shared key.
func splitKey(key string) (name, id string, is bool) {
	rest, is := strings.CutPrefix(key, sealedPrefix)
	if !is {
		return "", "", false
	}
	name, id, _ = strings.Cut(rest, "/")
	return name, id, true
}

// isNamed reports whether a key is that of a shared key of a name.
func isNamed(key, name string) bool {
	of, _, is := splitKey(key)
	return is && of == name
}
