package auth

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// tokenPrefix begins every token, so that people and secret scanners recognize one.
	// The number is the version of the format.
	tokenPrefix = "svcctl1."
	// tokenKeyName is the file of the signing key in the key directory.
	tokenKeyName = "token.key"
	// endedName is the file with the ID of a shared key whose tokens this box no longer accepts while other boxes still do.
	endedName = "token.ended"
	// tokenKeyBytes is the size of the key in bytes: the output size of SHA-256 (RFC 2104, section 3).
	tokenKeyBytes = sha256.Size
	// maxToken bounds the length of a token in bytes.
	maxToken = 1 << 10
	// maxTokenName bounds the length of a token's name in bytes.
	maxTokenName = 64
	// clockSkew is how far in the future the issue time of a token may lie, in case the clock was set back since.
	clockSkew = time.Minute

	// DefaultTokenLife is the default lifetime of a token.
	DefaultTokenLife = time.Hour
	// MaxTokenLife is the longest lifetime of a token.
	MaxTokenLife = 30 * 24 * time.Hour
)

// ErrToken means that a token is invalid, expired or revoked.
var ErrToken = errors.New("the token is not valid")

// ErrEnded means that no token can be issued: all tokens of the shared key were revoked on this box, and other boxes still accept them.
var ErrEnded = errors.New("all tokens were revoked on this box, and the other boxes do not have that yet: tokens are issued again when they do")

// Tokens issues and verifies bearer tokens. A token contains its user, role and expiry,
// signed with HMAC-SHA256 (RFC 2104). It is safe for concurrent use.
//
// The key is this box's own, in a file, or one that several boxes share (Share).
type Tokens struct {
	path, endedPath string
	now             func() time.Time

	changing sync.Mutex // guards the files; locked before mu

	mu      sync.RWMutex
	key     []byte
	shared  string        // ID of key if several boxes share it; "" if it is this box's own
	ended   bool          // this box no longer accepts tokens signed by the shared key
	revoked chan struct{} // closed and replaced when tokens are revoked
}

// OpenTokens reads the signing key from a directory. It creates the directory and the key if they do not exist.
func OpenTokens(dir string) (*Tokens, error) {
	t := newTokens(dir)
	if err := t.own(); err != nil {
		return nil, err
	}
	return t, nil
}

// OpenShared returns a Tokens that signs with a key which several boxes share; see Share.
func OpenShared(dir, id string, key []byte) (*Tokens, error) {
	t := newTokens(dir)
	if err := t.Share(id, key); err != nil {
		return nil, err
	}
	return t, nil
}

func newTokens(dir string) *Tokens {
	return &Tokens{path: filepath.Join(dir, tokenKeyName), endedPath: filepath.Join(dir, endedName), now: time.Now, revoked: make(chan struct{})}
}

// own makes the key in the file the signing key. It creates the file with a new key if there is none.
func (t *Tokens) own() error {
	key, err := readKeyFile(t.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return t.replaceOwn()
	case err != nil:
		return fmt.Errorf("read the key of tokens: %w", err)
	case len(key) != tokenKeyBytes:
		return fmt.Errorf("read the key of tokens: %s has %d bytes, want %d: remove it, and a new one is created; tokens that were given out end with it",
			t.path, len(key), tokenKeyBytes)
	}
	t.use("", key, false)
	return nil
}

// use replaces the signing key, which invalidates all tokens signed with the old key.
func (t *Tokens) use(shared string, key []byte, ended bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.key != nil && hmac.Equal(t.key, key) && t.ended == ended {
		t.shared = shared
		return
	}
	t.key, t.shared, t.ended = key, shared, ended
	close(t.revoked)
	t.revoked = make(chan struct{})
}

// NewTokenKey makes a key for tokens.
func NewTokenKey() []byte {
	key := make([]byte, tokenKeyBytes)
	rand.Read(key) // never fails
	return key
}

// Share makes the signing key one that several boxes share, identified by id. It deletes this box's own key, so that tokens signed with it never
// become valid again. If id is "", the box signs with a key of its own again, which is a new one if the last key was shared.
func (t *Tokens) Share(id string, key []byte) error {
	t.changing.Lock()
	defer t.changing.Unlock()
	if id == "" {
		if shared, _ := t.Shared(); shared == "" && t.has() {
			return nil
		}
		return t.own()
	}
	if len(key) != tokenKeyBytes {
		return fmt.Errorf("the key of tokens that boxes share has %d bytes, want %d", len(key), tokenKeyBytes)
	}
	if t.shares(id, key) {
		return nil
	}
	ended, err := readKeyFile(t.endedPath)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read whether tokens were revoked: %w", err)
	}
	isEnded := err == nil && string(ended) == id
	if !isEnded { // others have it, if there was one
		if err := removeKeyFile(t.endedPath); err != nil {
			return fmt.Errorf("note that other boxes have the revoked tokens: %w", err)
		}
	}
	if err := removeKeyFile(t.path); err != nil {
		return fmt.Errorf("end the tokens that this box alone has given: %w", err)
	}
	t.use(id, key, isEnded)
	return nil
}

// shares reports whether tokens are signed by the shared key with this ID and these bytes.
func (t *Tokens) shares(id string, key []byte) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.shared == id && hmac.Equal(t.key, key)
}

// has reports whether there is a key.
func (t *Tokens) has() bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.key != nil
}

// Shared returns the ID of the shared signing key, or "" if the key is this box's own, and whether this box no longer accepts tokens signed with the
// shared key; see End.
func (t *Tokens) Shared() (id string, ended bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.shared, t.ended
}

// End invalidates on this box all tokens signed with the shared key that has this ID, permanently. After an error they are still valid.
func (t *Tokens) End(id string) error {
	t.changing.Lock()
	defer t.changing.Unlock()
	if err := writeKeyFile(t.endedPath, []byte(id)); err != nil {
		return fmt.Errorf("end all tokens: %w", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.shared == id && !t.ended {
		t.ended = true
		close(t.revoked)
		t.revoked = make(chan struct{})
	}
	return nil
}

// RevokeAll replaces the key of this box, which invalidates all tokens issued before. After an error
// they are still valid. It returns an error if boxes share the key, which has to be replaced for all of them.
func (t *Tokens) RevokeAll() error {
	t.changing.Lock()
	defer t.changing.Unlock()
	if id, _ := t.Shared(); id != "" {
		return errors.New("the key of tokens is shared: replace it for all boxes")
	}
	return t.replaceOwn()
}

func (t *Tokens) replaceOwn() error {
	key := NewTokenKey()
	if err := writeKeyFile(t.path, key); err != nil {
		return fmt.Errorf("make a key for tokens: %w", err)
	}
	t.use("", key, false)
	return nil
}

// Revoked returns a channel that is closed when the current tokens are revoked.
func (t *Tokens) Revoked() <-chan struct{} {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.revoked
}

// claims is the content of a token.
type claims struct {
	Name    string `json:"n"`
	Role    string `json:"r"`
	Issued  int64  `json:"i"` // seconds of Unix time
	Expires int64  `json:"e"`
}

// Issue returns a token for a user with the given lifetime, truncated to seconds, and its
// expiry.
func (t *Tokens) Issue(u User, life time.Duration) (text string, expires time.Time, err error) {
	switch {
	case u.Role < Reader:
		return "", time.Time{}, errors.New("role none cannot have a token")
	case life < time.Second || life > MaxTokenLife:
		return "", time.Time{}, fmt.Errorf("a token cannot be valid for %s: give a duration from 1s to %.0fh", life, MaxTokenLife.Hours())
	}
	if _, ended := t.Shared(); ended {
		return "", time.Time{}, ErrEnded
	}
	now := t.now()
	expires = now.Add(life).Truncate(time.Second).UTC()
	payload, err := json.Marshal(claims{Name: u.Name, Role: u.Role.String(), Issued: now.Unix(), Expires: expires.Unix()})
	if err != nil {
		return "", time.Time{}, fmt.Errorf("make a token: %w", err)
	}
	signed := tokenPrefix + base64.RawURLEncoding.EncodeToString(payload)
	if len(signed) > maxToken-2*sha256.Size {
		return "", time.Time{}, errors.New("make a token: the name is too long: give a shorter one")
	}
	return signed + "." + base64.RawURLEncoding.EncodeToString(t.sign(signed)), expires, nil
}

func (t *Tokens) sign(text string) []byte {
	t.mu.RLock()
	defer t.mu.RUnlock()
	mac := hmac.New(sha256.New, t.key)
	mac.Write([]byte(text)) // writes to a hash never fail
	return mac.Sum(nil)
}

// Verify returns the user and the expiry of a token. The error wraps ErrToken. It includes the reason only if the token's signature is valid.
func (t *Tokens) Verify(text string) (User, time.Time, error) {
	c, err := t.read(text)
	if err != nil {
		return User{}, time.Time{}, err
	}
	if _, ended := t.Shared(); ended {
		return User{}, time.Time{}, fmt.Errorf("%w any more: all tokens were revoked", ErrToken)
	}
	role, err := ParseRole(c.Role)
	if err != nil {
		return User{}, time.Time{}, ErrToken
	}
	now, expires := t.now(), time.Unix(c.Expires, 0).UTC()
	switch {
	case !now.Before(expires):
		return User{}, time.Time{}, fmt.Errorf("%w any more: it expired at %s", ErrToken, expires.Format(time.RFC3339))
	case now.Add(clockSkew).Unix() < c.Issued:
		return User{}, time.Time{}, fmt.Errorf("%w yet: it was issued at %s, which is to come by the appliance's clock", ErrToken, time.Unix(c.Issued, 0).UTC().Format(time.RFC3339))
	}
	return newUser(c.Name, role), expires, nil
}

// read verifies the signature of a token and decodes its claims. The error is ErrToken.
func (t *Tokens) read(text string) (c claims, err error) {
	cut := strings.LastIndexByte(text, '.')
	if len(text) > maxToken || cut < 0 || !strings.HasPrefix(text, tokenPrefix) {
		return c, ErrToken
	}
	signed := text[:cut]
	mac, err := base64.RawURLEncoding.Strict().DecodeString(text[cut+1:])
	if err != nil || !hmac.Equal(mac, t.sign(signed)) {
		return c, ErrToken
	}
	payload, err := base64.RawURLEncoding.Strict().DecodeString(strings.TrimPrefix(signed, tokenPrefix))
	if err == nil {
		err = json.Unmarshal(payload, &c)
	}
	if err != nil {
		return c, ErrToken
	}
	return c, nil
}

// ErrRole means that a user requests more than their own role.
var ErrRole = errors.New("a token cannot have a higher role than its creator")

// Delegate returns the user for a token with a role and a name; by is the user that requests the token. The error wraps ErrRole if role is higher
// than by.Role. The name of the new user is by.Name, ":" and name. If name is "", the name of the role takes its place; if the role is also by.Role,
// the new user has the name by.Name.
func Delegate(by User, role Role, name string) (User, error) {
	if role > by.Role {
		return User{}, fmt.Errorf("%w: %s is a %s, and the token is for the role %s: ask for --role %s, or as root", ErrRole, by.Name, by.Role, role, by.Role)
	}
	switch {
	case name == "" && role == by.Role:
		return newUser(by.Name, role), nil
	case name == "":
		name = role.String()
	}
	for _, r := range name {
		if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.@", r)) {
			return User{}, fmt.Errorf("%q cannot name a token: use letters, digits, '-', '_', '.' and '@'", name)
		}
	}
	if len(name) > maxTokenName {
		return User{}, fmt.Errorf("the name of a token has %d bytes, at most %d are taken: give a shorter one", len(name), maxTokenName)
	}
	return newUser(by.Name+":"+name, role), nil
}

// Role is a set of permissions.
type Role int

const (
	Nobody    Role = iota // no permission
	Box                   // a leaf box of the fleet: follows the fleet's commits, and reports its state
	Reader                // get, list, watch
	Endpoints             // permissions of Reader; writes the EndpointSlices and Leases of svcctl discover, and Events
	Admin                 // all requests
)

// roleNames holds the names of the roles as used in tokens and command-line flags.
var roleNames = [...]string{Nobody: "nobody", Box: "box", Reader: "reader", Endpoints: "endpoints", Admin: "admin"}

// String returns the name of the role: "nobody", "box", "reader", "endpoints" or "admin".
func (r Role) String() string { return roleNames[r] }

// ParseRole parses the name of a role that can be granted.
func ParseRole(name string) (Role, error) {
	for _, r := range []Role{Reader, Endpoints, Admin} {
		if name == r.String() {
			return r, nil
		}
	}
	return Nobody, fmt.Errorf("%q is not a role: give %s, %s or %s", name, Reader, Endpoints, Admin)
}

// The groups of users. Those with the prefix "system:" are the groups of Kubernetes, with the same meaning.
const (
	GroupAuthenticated   = "system:authenticated"
	GroupUnauthenticated = "system:unauthenticated"
	GroupMasters         = "system:masters" // may do everything
	GroupReaders         = "svcctl:readers"
	GroupEndpoints       = "svcctl:endpoints"
)

// Anonymous is the name of a user without credentials.
const Anonymous = "system:anonymous"

// User is the authenticated user of a request.
type User struct {
	Name   string   // "root", "uid:1000", "root:ci" for a token that root has named ci
	Groups []string // names of groups, as in the response to a SelfSubjectReview
	Role   Role
}

// newUser returns a user with a role and the groups that belong to it.
func newUser(name string, role Role) User {
	u := User{Name: name, Role: role, Groups: []string{GroupAuthenticated}}
	switch role {
	case Admin:
		u.Groups = []string{GroupMasters, GroupAuthenticated}
	case Reader:
		u.Groups = []string{GroupReaders, GroupAuthenticated}
	case Endpoints:
		u.Groups = []string{GroupEndpoints, GroupAuthenticated}
	}
	return u
}

type userKey struct{}

// With returns a context that carries the user of a request.
func With(ctx context.Context, u User) context.Context { return context.WithValue(ctx, userKey{}, u) }

// From returns the user of a request's context, or the zero User.
func From(ctx context.Context) User {
	u, _ := ctx.Value(userKey{}).(User)
	return u
}

const (
	keyDirMode  = 0o700
	keyFileMode = 0o600
	// maxKeyFile bounds the size of a key file in bytes.
	maxKeyFile = 64 << 10
)

// readKeyFile reads a key file. The error wraps fs.ErrNotExist if there is none. A file that other users can read is an error, because its content is
// no secret any more.
func readKeyFile(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	switch mode := info.Mode(); {
	case !mode.IsRegular():
		return nil, fmt.Errorf("%s is no regular file: remove it, and a new one is created", path)
	case mode.Perm()&0o077 != 0:
		return nil, fmt.Errorf("%s can be read by others (mode %04o), so its content is not secret: remove it, and a new one is created", path, mode.Perm())
	}
	return io.ReadAll(io.LimitReader(f, maxKeyFile))
}

// writeKeyFile writes a file that only its owner can read, and creates its directory if needed. The write is atomic, and durable if it succeeds.
// After an error the file is the old one, or the new one if only the sync of the directory failed.
func writeKeyFile(path string, data []byte) (err error) {
	dir := filepath.Dir(path)
	if err := makeKeyDir(dir); err != nil {
		return err
	}
	fresh := path + ".new"
	if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(fresh, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, keyFileMode)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		_ = os.Remove(fresh)
		return err
	}
	if err := os.Rename(fresh, path); err != nil {
		return err
	}
	return syncDir(dir)
}

// removeKeyFile removes a file durably. It is no error if the file does not exist.
func removeKeyFile(path string) error {
	err := os.Remove(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// makeKeyDir creates a directory below an existing one and makes it durable.
func makeKeyDir(dir string) error {
	err := os.Mkdir(dir, keyDirMode)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return syncDir(filepath.Dir(dir))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
