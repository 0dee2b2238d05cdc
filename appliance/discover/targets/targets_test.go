package targets

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/appliance/discover/provider"
	"svcctl.io/svcctl/appliance/test/providertest"
)

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// replace renames a new file to a name.
func replace(t *testing.T, name, text string) {
	t.Helper()
	write(t, name+".new", text)
	if err := os.Rename(name+".new", name); err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, url string, env map[string]string) provider.Provider {
	t.Helper()
	p, err := New(provider.Config{URL: url, Env: env})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

const web = `[{"targets": ["10.0.0.1:80", "10.0.0.2:81"], "labels": {"job": "web", "weight": "3", "priority": "1", "zone": "a", "node": "n1"}},
	{"targets": ["[fd00::1]:82"], "labels": {"job": "web", "tier": "gold"}},
	{"targets": ["10.0.0.9:9"], "labels": {"job": "db"}}, {"targets": ["10.9.9.9:9"]}]`

var webEndpoints = []string{"10.0.0.1:80 w3 p1 n1/a", "10.0.0.2:81 w3 p1 n1/a", "[fd00::1]:82"}

func Test986_targets_of_a_file(t *testing.T) {
	name := filepath.Join(t.TempDir(), "web.json")
	p := open(t, "file://"+name, nil)
	f := providertest.Follow(t, p, "web")
	f.Fails("no such file")
	write(t, name, web)
	f.Answer(webEndpoints...)
	gold, none := providertest.Follow(t, p, "tier=gold,job=web"), providertest.Follow(t, p, "none")
	gold.Answer("[fd00::1]:82")
	none.Answer()
	replace(t, name, `[{"targets": ["10.0.0.7:80"], "labels": {"job": "web"}}]`)
	f.Answer("10.0.0.7:80")
	gold.Answer()
	replace(t, name, `[{"targets": ["10.0.0.8:80"], "labels": {"job": "web"}}]`)
	f.Answer("10.0.0.8:80")
	for text, failure := range map[string]string{
		``:                             "is empty, and no JSON",
		`null`:                         "is null",
		`[{"targets": ["10.0`:          "unexpected end of JSON",
		`[] []`:                        "not as expected",
		`{"targets": []}`:              "not as expected",
		`- targets: [1.2.3.4]`:         "not as expected",
		`[{"labels": {"job": "web"}}]`: "[0].targets: is missing",
		`[{"targets": ["web1.example.com:80"], "labels": {"job": "web"}}]`:                `[0].targets[0]: must be an IP address and a port: "web1.example.com:80"`,
		`[{"targets": ["10.0.0.1:1", "10.0.0.2"], "labels": {"job": "web"}}]`:             "[0].targets[1]: must be an IP address and a port",
		`[{"targets": ["10.0.0.1:0"], "labels": {"job": "web"}}]`:                         "must be an IP address and a port",
		`[{"targets": ["10.0.0.1:1"], "labels": {"job": "web", "weight": "heavy"}}]`:      `label weight: must be a number from 1 to 65535: "heavy"`,
		`[{"targets": ["10.0.0.1:1"], "labels": {"job": "web", "priority": "10"}}]`:       "label priority: must be a number from 0 to 9",
		`[{"targets": ["10.0.0.1:1"], "labels": {"job": ["web"]}}]`:                       "not as expected",
		`[{"targets": ["10.0.0.1:1"], "labels": {"job": "web"}}` + strings.Repeat(" ", 9): "unexpected end",
	} {
		write(t, name, text)
		f.Fails(failure)
		f.Fresh(func() { replace(t, name, `[{"targets": ["10.0.0.8:80"], "labels": {"job": "web"}}]`) })
		f.Answer("10.0.0.8:80")
	}
	// Another job's bad target is no failure of this one.
	replace(t, name, `[{"targets": ["10.0.0.8:81"], "labels": {"job": "web"}}, {"targets": ["db"], "labels": {"job": "db"}}]`)
	f.Answer("10.0.0.8:81")
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	f.Fails("no such file")
	for _, a := range f.Answers() {
		if len(a.Endpoints) == 0 {
			t.Fatal("a failure was taken as an empty answer")
		}
	}
	replace(t, name, `[]`)
	f.Answer()
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(name, 0o700); err != nil {
		t.Fatal(err)
	}
	f.Fails("is no regular file")
}

// A link that is turned, in its own directory and in one that it leads through, as in volumes of Kubernetes.
func Test986_targets_behind_links(t *testing.T) {
	dir := t.TempDir()
	target := func(version, address string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(dir, version), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, version, "web.json"), `[{"targets": ["`+address+`"], "labels": {"job": "web"}}]`)
	}
	link := func(to, name string) {
		t.Helper()
		if err := os.Symlink(to, filepath.Join(dir, "new")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	target("v1", "10.0.0.1:1")
	target("v2", "10.0.0.2:1")
	link("v1", "data")
	link("data/web.json", "web.json")
	f := providertest.Follow(t, open(t, "file://"+filepath.Join(dir, "web.json"), nil), "web")
	f.Answer("10.0.0.1:1")
	link("v2", "data")
	f.Answer("10.0.0.2:1")
	target("v2", "10.0.0.3:1")
	f.Answer("10.0.0.3:1")
	link("v1/web.json", "web.json")
	f.Answer("10.0.0.1:1")
}

// Test1145_other_files_beside_the_targets: what is written to other files of the directory causes no read of the file of targets, and what is written to that
// one without a pause, a read each 50 ms at most.
func Test1145_other_files_beside_the_targets(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "web.json")
	write(t, name, web)
	f := providertest.Follow(t, open(t, "file://"+name, nil), "web")
	f.Answer(webEndpoints...)
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	opened := func(do func()) (times, most int) {
		watch, err := unix.InotifyAddWatch(fd, name, unix.IN_ACCESS|unix.IN_OPEN)
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		do()
		most = int(time.Since(begin)/pause) + 3
		buf := make([]byte, 1<<16)
		for n, _ := unix.Read(fd, buf); n > 0; n, _ = unix.Read(fd, buf) {
			for at := 0; at+unix.SizeofInotifyEvent <= n; at += unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(buf[at+12:])) {
				if binary.NativeEndian.Uint32(buf[at+4:])&unix.IN_OPEN != 0 {
					times++
				}
			}
		}
		_, _ = unix.InotifyRmWatch(fd, uint32(watch))
		return times, most
	}
	beside, _ := opened(func() {
		for i := range 300 {
			write(t, filepath.Join(dir, fmt.Sprintf("other%d", i%3)), "x")
			time.Sleep(time.Millisecond) // as a program that writes all the time
		}
	})
	if ticks := 2; beside > ticks {
		t.Errorf("it is read %d times while others are written", beside)
	}
	file, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if times, most := opened(func() {
		for i := range 300 {
			if _, err := file.WriteAt([]byte(strings.Repeat(" ", i%2)+web), 0); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
		}
	}); times > most {
		t.Errorf("it is read %d times while it is written, %d at most", times, most)
	}
	replace(t, name, `[{"targets": ["10.0.0.7:80"], "labels": {"job": "web"}}]`)
	f.Answer("10.0.0.7:80")
}

func Test986_targets_of_a_URL(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for half a minute")
	}
	token := filepath.Join(t.TempDir(), "token")
	write(t, token, "secret\n")
	var mu sync.Mutex
	text, unchanged, plain := web, 0, 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if r.URL.String() != "/sd?team=a%20b&x=1" && r.URL.String() != "/sd?team=a+b&x=1" || r.Header.Get("Authorization") != "Bearer secret" {
			t.Errorf("%s with %q", r.URL, r.Header.Get("Authorization"))
		}
		etag := fmt.Sprintf("W/%q", fmt.Sprint(len(text)))
		w.Header().Set("ETag", etag)
		if r.Header.Get("If-None-Match") == etag {
			unchanged++
			w.WriteHeader(http.StatusNotModified)
			return
		}
		plain++
		_, _ = w.Write([]byte(text))
	}))
	t.Cleanup(server.Close)
	proxy := providertest.NewProxy(t, "tcp", strings.TrimPrefix(server.URL, "http://"))
	p := open(t, proxy.URL+"/sd?team=a%20b&x=1", map[string]string{"TARGETS_TOKEN_FILE": token})
	f, db := providertest.Follow(t, p, "web"), providertest.Follow(t, p, "db")
	f.Answer(webEndpoints...)
	db.Answer("10.0.0.9:9")
	for seen := false; !seen; time.Sleep(50 * time.Millisecond) { // real time: a URL is asked every 10 s
		mu.Lock()
		seen = unchanged > 0
		if plain > 2 { // both questions may have begun a stream
			t.Errorf("%d whole answers that did not change", plain)
		}
		mu.Unlock()
	}
	mu.Lock()
	text = `[{"targets": ["10.0.0.7:80"], "labels": {"job": "web"}}]`
	mu.Unlock()
	f.Answer("10.0.0.7:80")
	db.Answer()
	db.Stop()
	providertest.Faults(t, proxy, f)
	f.Answer("10.0.0.7:80")
	mu.Lock()
	text = `[]`
	mu.Unlock()
	f.Answer()
	if failed := len(f.Failures()); failed > 200 {
		t.Errorf("%d failures", failed)
	}
}

func TestConfiguration(t *testing.T) {
	for url, want := range map[string]string{
		"": "as in --from targets+file:///PATH", "web.json": "must be", "file://host/web.json": "must be file:///PATH", "file:///": "must be",
		"ftp://x/y": "must be", "http://": "must be http://HOST:PORT", "http://a:b@x\x7f/": "must be",
	} {
		if _, err := New(provider.Config{URL: url}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", url, err, want)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	p := open(t, "http://user:password@"+l.Addr().String()+"/sd?token=secret", nil)
	f := providertest.Follow(t, p, "web")
	f.Fails("connection refused")
	if text := f.Failures()[0].Error(); strings.Contains(text, "password") || strings.Contains(text, "secret") {
		t.Errorf("a secret in %s", text)
	}
	providertest.Follow(t, p, "web?a=b").Fails(`"a" is no parameter: there is none but hold`)
	providertest.Follow(t, p, "job=a,,b").Fails("with commas between")
}
