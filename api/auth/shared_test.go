package auth

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// issued is a token of the tokens.
func issued(t *testing.T, tokens *Tokens) string {
	t.Helper()
	text, _, err := tokens.Issue(newUser("root", Admin), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func valid(tokens *Tokens, text string) bool {
	_, _, err := tokens.Verify(text)
	return err == nil
}

// A shared key makes a token of one box one of all boxes; what ended does not come back, whatever the order in which
// boxes get and lose the key.
func TestSharedTokens(t *testing.T) {
	dirs := []string{filepath.Join(t.TempDir(), "keys"), filepath.Join(t.TempDir(), "keys")}
	a, err := OpenTokens(dirs[0])
	if err != nil {
		t.Fatal(err)
	}
	own, ended := issued(t, a), a.Revoked()
	key, next := NewTokenKey(), NewTokenKey()
	b, err := OpenShared(dirs[1], "one", key)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Share("one", key); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	default:
		t.Error("watches with a token of the box's own go on")
	}
	first := issued(t, a)
	if valid(a, own) || !valid(b, first) || !valid(a, issued(t, b)) {
		t.Errorf("of its own: %v, of box a on box b: %v", valid(a, own), valid(b, first))
	}
	if err := a.RevokeAll(); err == nil {
		t.Error("a key that boxes share is replaced by one of them alone")
	}
	again := a.Revoked()
	if err := a.Share("one", key); err != nil {
		t.Fatal(err)
	}
	select {
	case <-again:
		t.Error("the same key ended the tokens")
	default:
	}
	if err := a.Share("two", []byte("short")); err == nil || !valid(a, first) {
		t.Errorf("a short key: %v", err)
	}
	// Revoked on a box that cannot tell the others: over a restart, and until there is another key.
	if err := b.End("one"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if valid(b, first) || !valid(a, first) {
			t.Errorf("after it was revoked on box b it is valid there: %v, on box a: %v", valid(b, first), valid(a, first))
		}
		if _, _, err := b.Issue(newUser("root", Admin), time.Hour); !errors.Is(err, ErrEnded) {
			t.Errorf("a token that only this box would refuse later: %v", err)
		}
		if b, err = OpenShared(dirs[1], "one", key); err != nil {
			t.Fatal(err)
		}
	}
	for _, x := range []*Tokens{a, b} {
		if err := x.Share("two", next); err != nil {
			t.Fatal(err)
		}
		if valid(x, first) {
			t.Error("a revoked token is valid")
		}
	}
	second := issued(t, b)
	if !valid(a, second) {
		t.Error("a token of the new key is not valid")
	}
	if _, err := os.Stat(filepath.Join(dirs[1], endedName)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what others know is noted still: %v", err)
	}
	// A box that leaves begins anew.
	if err := a.Share("", nil); err != nil {
		t.Fatal(err)
	}
	mine := issued(t, a)
	if valid(a, own) || valid(a, first) || valid(a, second) || valid(b, mine) {
		t.Error("a token is valid on a box that has another key")
	}
	if err := a.Share("", nil); err != nil || !valid(a, mine) {
		t.Errorf("once more: %v", err)
	}
	if again, err := OpenTokens(dirs[0]); err != nil || !valid(again, mine) {
		t.Errorf("after a restart: %v", err)
	}
}

// A shared CA certifies the names of each box; a box that has it no more is one of its own again.
func TestSharedAuthority(t *testing.T) {
	clock := time.Now()
	a, b := openAuthority(t, filepath.Join(t.TempDir(), "keys"), clock, "gw1"), openAuthority(t, filepath.Join(t.TempDir(), "keys"), clock, "gw2")
	own := b.CA()
	key, ends, err := a.Export()
	if err != nil || ends {
		t.Fatal(err, ends)
	}
	if err := b.Share(key); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a.CA(), b.CA()) || b.check(t, a.CA(), "gw2") != nil || b.check(t, a.CA(), "gw1") == nil {
		t.Errorf("box b: %v for its name, %v for the other's", b.check(t, a.CA(), "gw2"), b.check(t, a.CA(), "gw1"))
	}
	first, _ := b.Certificate(nil)
	if err := b.Share(key); err != nil {
		t.Fatal(err)
	}
	if again, _ := b.Certificate(nil); again != first {
		t.Error("the same CA made another certificate")
	}
	for what, broken := range map[string][]byte{"text": []byte("hello"), "without a key": a.CA()} {
		if err := b.Share(broken); err == nil || b.check(t, a.CA(), "gw2") != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	// At its end boxes do not replace it one by one, and serve with it until there is another one.
	b.clock = clock.Add(authorityLife - renewBefore + time.Hour)
	if _, ends, err := b.Export(); !ends || err != nil || !bytes.Equal(a.CA(), b.CA()) {
		t.Errorf("at its end: %v %v", ends, err)
	}
	last, _ := b.Certificate(nil)
	if same, _ := b.Certificate(nil); same != last || b.check(t, a.CA(), "gw2") != nil {
		t.Error("near its end each connection makes another certificate, or one that is not valid")
	}
	fresh, err := NewAuthorityKey(b.clock)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Share(fresh); err != nil || b.check(t, b.CA(), "gw2") != nil || bytes.Equal(a.CA(), b.CA()) {
		t.Errorf("its successor: %v", err)
	}
	b.clock = clock
	if err := b.Share(nil); err != nil || !bytes.Equal(b.CA(), own) || b.check(t, own, "gw2") != nil {
		t.Errorf("its own again: %v", err)
	}
	if strings.Contains(b.log.String(), "replaced") {
		t.Error(b.log.String())
	}
	if again, err := OpenAuthority(filepath.Dir(b.path), nil, slog.New(slog.DiscardHandler)); err != nil || !bytes.Equal(again.CA(), own) {
		t.Errorf("after a restart: %v", err)
	}
}
