package auth

import (
	"encoding/base64"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

func openTokens(t *testing.T, dir string) *Tokens {
	t.Helper()
	tokens, err := OpenTokens(dir)
	if err != nil {
		t.Fatal(err)
	}
	return tokens
}

func issue(t *testing.T, tokens *Tokens, u User, life time.Duration) string {
	t.Helper()
	text, _, err := tokens.Issue(u, life)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestTokens(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	tokens := openTokens(t, dir)
	clock := time.Unix(1_800_000_000, 0)
	tokens.now = func() time.Time { return clock }
	text, expires, err := tokens.Issue(newUser("root:ci", Reader), time.Hour)
	if err != nil || !expires.Equal(clock.Add(time.Hour)) {
		t.Fatalf("issued until %s: %v", expires, err)
	}
	u, until, err := tokens.Verify(text)
	if err != nil || !until.Equal(expires) || u.Name != "root:ci" || u.Role != Reader || strings.Join(u.Groups, " ") != "svcctl:readers system:authenticated" {
		t.Errorf("verified %+v: %v", u, err)
	}
	again := openTokens(t, dir) // a restart
	again.now = tokens.now
	if _, _, err := again.Verify(text); err != nil {
		t.Errorf("after a restart: %v", err)
	}
	clock = clock.Add(time.Hour - time.Second)
	if _, _, err := tokens.Verify(text); err != nil {
		t.Errorf("a second before its end: %v", err)
	}
	clock = clock.Add(time.Second)
	if _, _, err := tokens.Verify(text); !errors.Is(err, ErrToken) || !strings.Contains(err.Error(), "it expired at 2027-01-15T09:00:00Z") {
		t.Errorf("at its end: %v", err)
	}
	clock = clock.Add(-time.Hour - 2*time.Minute)
	if _, _, err := tokens.Verify(text); !errors.Is(err, ErrToken) {
		t.Errorf("before it was issued: %v", err)
	}
}

func TestForgedTokens(t *testing.T) {
	tokens := openTokens(t, t.TempDir())
	good := issue(t, tokens, newUser("root", Reader), time.Hour)
	other := issue(t, openTokens(t, t.TempDir()), newUser("root", Admin), time.Hour)
	body, mac, _ := strings.Cut(strings.TrimPrefix(good, tokenPrefix), ".")
	payload, err := base64.RawURLEncoding.DecodeString(body)
	if err != nil {
		t.Fatal(err)
	}
	admin := base64.RawURLEncoding.EncodeToString([]byte(strings.Replace(string(payload), `"reader"`, `"admin"`, 1)))
	forged := map[string]string{
		"nothing":                   "",
		"the prefix alone":          tokenPrefix,
		"no signature":              tokenPrefix + body,
		"an empty signature":        tokenPrefix + body + ".",
		"another prefix":            "svcctl2." + body + "." + mac,
		"another role":              tokenPrefix + admin + "." + mac,
		"another key":               other,
		"something behind it":       good + "A",
		"something before it":       "A" + good,
		"padding":                   good + "=",
		"a part of its signature":   good[:len(good)-4],
		"other bits of the last":    good[:len(good)-1] + string(good[len(good)-1]^1),
		"signed garbage":            signed(tokens, "{}x"),
		"signed without a role":     signed(tokens, `{"n":"root","i":0,"e":9999999999}`),
		"signed with another role":  signed(tokens, `{"n":"root","r":"god","i":0,"e":9999999999}`),
		"as long as a megabyte":     tokenPrefix + strings.Repeat("A", 1<<20) + "." + mac,
		"a signature of a megabyte": tokenPrefix + body + "." + strings.Repeat("A", 1<<20),
	}
	for what, text := range forged {
		if u, _, err := tokens.Verify(text); !errors.Is(err, ErrToken) || u.Role != Nobody {
			t.Errorf("%s: %+v, %v", what, u, err)
		}
	}
	if _, _, err := tokens.Verify(good); err != nil {
		t.Errorf("the good one: %v", err)
	}
}

// signed is a token with a good signature of any payload.
func signed(t *Tokens, payload string) string {
	text := tokenPrefix + base64.RawURLEncoding.EncodeToString([]byte(payload))
	return text + "." + base64.RawURLEncoding.EncodeToString(t.sign(text))
}

func TestRevokeAll(t *testing.T) {
	dir := t.TempDir()
	tokens := openTokens(t, dir)
	old := issue(t, tokens, newUser("root", Admin), time.Hour)
	told := tokens.Revoked()
	if err := tokens.RevokeAll(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-told:
	default:
		t.Error("nobody was told")
	}
	select {
	case <-tokens.Revoked():
		t.Error("those that are issued now are revoked")
	default:
	}
	if _, _, err := tokens.Verify(old); !errors.Is(err, ErrToken) {
		t.Errorf("a revoked token: %v", err)
	}
	fresh := issue(t, tokens, newUser("root", Admin), time.Hour)
	after := openTokens(t, dir)
	if _, _, err := after.Verify(old); !errors.Is(err, ErrToken) {
		t.Errorf("a revoked token after a restart: %v", err)
	}
	if _, _, err := after.Verify(fresh); err != nil {
		t.Errorf("a new token after a restart: %v", err)
	}
	// What cannot be kept does not happen.
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := tokens.RevokeAll(); err == nil {
		t.Error("a key was made where no file can be")
	}
	if _, _, err := tokens.Verify(fresh); err != nil {
		t.Errorf("after a revocation that failed: %v", err)
	}
}

func TestConcurrentTokens(t *testing.T) {
	tokens := openTokens(t, t.TempDir())
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 20 {
				if i == 0 {
					if err := tokens.RevokeAll(); err != nil {
						t.Error(err)
					}
					continue
				}
				text, _, err := tokens.Issue(newUser("root", Admin), time.Hour)
				if err != nil {
					t.Error(err)
				}
				if u, _, err := tokens.Verify(text); err == nil && u.Name != "root" {
					t.Errorf("%+v", u)
				}
			}
		})
	}
	wg.Wait()
}

func TestKeyFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	openTokens(t, dir)
	path := filepath.Join(dir, tokenKeyName)
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 || info.Size() != tokenKeyBytes {
		t.Fatalf("the key is %v: %v", info, err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("its directory is %v: %v", info, err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
	for _, tt := range []struct {
		what string
		do   func() error
		want string
	}{
		{"readable", func() error { return os.Chmod(path, 0o640) }, "can be read by others (mode 0640)"},
		{"short", func() error { return os.WriteFile(path, []byte("short"), 0o600) }, "has 5 bytes, want 32: remove it"},
		{"empty", func() error { return os.Truncate(path, 0) }, "has 0 bytes"},
		{"directory", func() error { return os.Mkdir(path, 0o700) }, "is no regular file"},
		{"link", func() error { return os.Symlink("/etc/hostname", path) }, "symbolic links"},
		{"fifo", func() error { return mkfifo(path) }, "is no regular file"},
	} {
		if tt.what != "readable" && tt.what != "empty" {
			if err := os.RemoveAll(path); err != nil {
				t.Fatal(err)
			}
		}
		if err := tt.do(); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenTokens(dir); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.what, err, tt.want)
		}
	}
}

func TestDelegate(t *testing.T) {
	root, reader := User{Name: "root", Role: Admin}, User{Name: "uid:1000", Role: Reader}
	for _, tt := range []struct {
		by   User
		role Role
		name string
		want string // the name; "" is an error
	}{
		{root, Admin, "", "root"},
		{root, Reader, "", "root:reader"},
		{reader, Reader, "", "uid:1000"},
		{root, Reader, "ci", "root:ci"},
		{root, Admin, "a@b.example_c-D", "root:a@b.example_c-D"},
		{reader, Reader, "root", "uid:1000:root"},
		{reader, Admin, "", ""},
		{User{}, Reader, "", ""},
		{root, Reader, "a b", ""},
		{root, Reader, "a:b", ""},
		{root, Reader, "a\nb", ""},
		{root, Reader, strings.Repeat("a", 65), ""},
	} {
		u, err := Delegate(tt.by, tt.role, tt.name)
		if (err == nil) != (tt.want != "") || err == nil && (u.Name != tt.want || u.Role != tt.role) {
			t.Errorf("%s gives %s %q: %+v, %v", tt.by.Name, tt.role, tt.name, u, err)
		}
	}
}

func TestIssueRefuses(t *testing.T) {
	tokens := openTokens(t, t.TempDir())
	for _, tt := range []struct {
		user User
		life time.Duration
	}{
		{newUser("root", Nobody), time.Hour}, {newUser("root", Admin), 0}, {newUser("root", Admin), -time.Hour},
		{newUser("root", Admin), MaxTokenLife + 1}, {newUser(strings.Repeat("a", 2000), Admin), time.Hour},
	} {
		if _, _, err := tokens.Issue(tt.user, tt.life); err == nil {
			t.Errorf("a token for %.10s, %s, %s", tt.user.Name, tt.user.Role, tt.life)
		}
	}
}

func FuzzVerify(f *testing.F) {
	tokens, err := OpenTokens(f.TempDir())
	if err != nil {
		f.Fatal(err)
	}
	good, _, err := tokens.Issue(newUser("root", Admin), time.Hour)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add("svcctl1.e30.AAAA")
	f.Fuzz(func(t *testing.T, text string) {
		if u, _, err := tokens.Verify(text); (err == nil) != (text == good) || err != nil && u.Role != Nobody {
			t.Errorf("%q: %+v, %v", text, u, err)
		}
	})
}
