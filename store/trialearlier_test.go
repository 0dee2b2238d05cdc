package store

import (
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"svcctl.io/svcctl/store/alloc"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/pending"
)

// TestTrialOfAnEarlierVersion: a trial that is pending over an upgrade goes back as it would have. The data file is
// what the first version with trials left when it was killed: through the API web became a ClusterIP, gone was
// deleted and new was made; of the files, filed became a ClusterIP and more came.
func TestTrialOfAnEarlierVersion(t *testing.T) {
	dir := t.TempDir()
	packed, err := os.Open("testdata/trial-pending.db.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer packed.Close()
	unpacked, err := gzip.NewReader(packed)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(unpacked)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "state.db"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := Config{
		ClusterIPRanges: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:10:96::/112")},
		Pools:           []alloc.Pool{pool("198.51.100.1", "198.51.100.9")},
		Clock:           func() time.Time { return time.Unix(1_800_000_000, 0) },
		NewUID:          func() string { t.Error("a uid is made anew"); return "another" },
	}
	contents := map[string]string{
		"/srv/svcctl/m/files.yaml": "apiVersion: v1\nkind: Service\nmetadata: {name: filed}\nspec: {type: ClusterIP, ports: [{port: 80}]}\n",
		"/srv/svcctl/m/more.yaml":  "apiVersion: v1\nkind: Service\nmetadata: {name: more}\nspec: {ports: [{port: 82}]}\n",
	}
	// open starts on the data, and reads the files as the watcher of a new process does.
	open := func() (b *box, done func()) {
		e, err := engine.OpenFile(dir, nil)
		if err != nil {
			t.Fatal(err)
		}
		s, err := Open(e, cfg)
		if err != nil {
			t.Fatal(err)
		}
		b = &box{t: t, s: s, files: map[string]*manifest.File{}}
		for path, text := range contents {
			b.write(path, text)
			b.files[path].Hash = sha256.Sum256([]byte(text))
			s.LastGood().Put(path, []byte(text))
		}
		if _, err := s.SyncFiles(manifest.FilesOf(b.files)); err != nil {
			t.Fatal(err)
		}
		return b, func() {
			if err := e.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	same := func(b *box) {
		t.Helper()
		for name, want := range map[string]string{
			"web":   "a2ed3a02-3fe0-4a16-a253-8c50013c4de4 LoadBalancer 10.96.132.245 32199 198.51.100.6",
			"gone":  "ca4b06f5-0ced-4957-9b51-3541d7097cb3 NodePort 10.96.20.37 32097 ",
			"filed": "672d0cb7-9e78-4a09-b8df-2ffe369c8994 NodePort 10.96.171.248 31856 ",
		} {
			svc := b.service(name)
			if got := fmt.Sprint(svc.Metadata.UID, " ", svc.Spec.Type, " ", b.ip(name), " ", b.nodePort(name), " ", b.ingress(name)); got != want {
				t.Errorf("%s is %s, it was %s", name, got, want)
			}
		}
		if b.has("new") || b.has("more") {
			t.Error("new or more is still there")
		}
		if state, is := b.s.Pending(pending.Timed); !is || state.Pending() || fmt.Sprint(state.Files) != "[/srv/svcctl/m/files.yaml /srv/svcctl/m/more.yaml]" {
			t.Errorf("%+v", state)
		}
	}

	b, done := open()
	if state, is := b.s.Pending(pending.Timed); !is || !state.Pending() || len(state.Objects) != 5 || len(state.Files) != 2 {
		t.Errorf("%+v %t", state, is)
	}
	if b.service("web").Spec.Type != object.TypeClusterIP || b.has("gone") || !b.has("new") || !b.has("more") {
		t.Error("what is on trial is not in force")
	}
	if revived, err := b.s.GoBack(manifest.FilesOf(b.files)); err != nil || len(revived) != 5 {
		t.Errorf("%+v %v", revived, err)
	}
	same(b)
	done()
	b, done = open()
	same(b)
	done()
}
