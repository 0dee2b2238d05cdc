package auth

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

const (
	// tokenPrefix begins every token, so that people and secret scanners recognize one.
	// The number is the version of the format.
	tokenPrefix = "svcctl1."
	// tokenKeyName is the file of the signing key in the key directory.
	tokenKeyName = "token.key"
	// tokenKeyBytes is the size of the key in bytes: that of the hash (RFC 2104, section
	// 3).
	tokenKeyBytes = sha256.Size
	// maxToken bounds the length of a token in bytes.
	maxToken = 1 << 10
	// maxTokenName bounds the length of a token's name in bytes.
	maxTokenName = 64
	// clockSkew bounds how far in the future a token may have been issued: the clock may have been
	// set back a little since.
	clockSkew = time.Minute

	// DefaultTokenLife is the default lifetime of a token.
	DefaultTokenLife = time.Hour
	// MaxTokenLife is the longest lifetime of a token.
	MaxTokenLife = 30 * 24 * time.Hour
)

// ErrToken means that a token is invalid, expired or revoked.
var ErrToken = errors.New("the token is not valid")

// Tokens issues and verifies bearer tokens. A token contains its user, role and expiry,
// signed with HMAC-SHA256 (RFC 2104). It is safe for concurrent use.
type Tokens struct {
	path string
	now  func() time.Time

	mu      sync.RWMutex
	key     []byte
	revoked chan struct{} // closed when key is replaced
}

// OpenTokens reads the signing key from a directory, or creates both.
func OpenTokens(dir string) (*Tokens, error) {
	t := &Tokens{path: filepath.Join(dir, tokenKeyName), now: time.Now, revoked: make(chan struct{})}
	key, err := readKeyFile(t.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return t, t.RevokeAll()
	case err != nil:
		return nil, fmt.Errorf("read the key of tokens: %w", err)
	case len(key) != tokenKeyBytes:
		return nil, fmt.Errorf("read the key of tokens: %s has %d bytes, want %d: remove it, and a new one is made; tokens that were given out end with it",
			t.path, len(key), tokenKeyBytes)
	}
	t.key = key
	return t, nil
}

// RevokeAll replaces the key, which invalidates all tokens issued before. After an error
// they are still valid.
func (t *Tokens) RevokeAll() error {
	key := make([]byte, tokenKeyBytes)
	rand.Read(key) // never fails
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := writeKeyFile(t.path, key); err != nil {
		return fmt.Errorf("make a key for tokens: %w", err)
	}
	t.key = key
	close(t.revoked)
	t.revoked = make(chan struct{})
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
	case u.Role != Reader && u.Role != Admin:
		return "", time.Time{}, errors.New("role none cannot have a token")
	case life < time.Second || life > MaxTokenLife:
		return "", time.Time{}, fmt.Errorf("a token cannot be valid for %s: give a duration from 1s to %.0fh", life, MaxTokenLife.Hours())
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

// Verify returns the user and the expiry of a token. The error wraps ErrToken and states
// the reason, but only to a client with a valid signature.
func (t *Tokens) Verify(text string) (User, time.Time, error) {
	c, err := t.read(text)
	if err != nil {
		return User{}, time.Time{}, err
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

// read decodes a token whose signature was verified.
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

// Delegate returns the user of a token that another user requests. Its role is at most
// the requester's (else ErrRole is wrapped). Its name is the requester's, followed by the
// token's name or by a lesser role.
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
