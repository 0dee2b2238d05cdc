package auth

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
)

func TestLocal(t *testing.T) {
	me := uint32(os.Geteuid())
	for _, tt := range []struct {
		local Local
		peer  Peer
		name  string
		role  Role
	}{
		{Local{}, Peer{UID: 0}, "root", Admin},
		{Local{}, Peer{UID: 1000, GID: 0, Groups: []uint32{0}}, "uid:1000", Reader},
		{LocalGroup(0), Peer{UID: 1000, GID: 0}, "uid:1000", Admin},
		{LocalGroup(50), Peer{UID: 1000, GID: 50}, "uid:1000", Admin},
		{LocalGroup(50), Peer{UID: 1000, GID: 51, Groups: []uint32{49, 50}}, "uid:1000", Admin},
		{LocalGroup(50), Peer{UID: 1000, GID: 51, Groups: []uint32{49, 51}}, "uid:1000", Reader},
		{LocalGroup(50), Peer{UID: 65534, GID: 65534}, "uid:65534", Reader},
	} {
		if u := tt.local.User(tt.peer); u.Name != tt.name || u.Role != tt.role {
			t.Errorf("%+v at %+v is %+v", tt.peer, tt.local, u)
		}
	}
	if u := (Local{}).User(Peer{UID: me}); u.Role != Admin {
		t.Errorf("the appliance's own user is %+v", u)
	}
}

func TestLookupGroup(t *testing.T) {
	for name, want := range map[string]uint32{"root": 0, "0": 0, "12345": 12345} {
		if gid, err := LookupGroup(name); err != nil || gid != want {
			t.Errorf("%s: %d, %v", name, gid, err)
		}
	}
	for _, name := range []string{"", "no-such-group", "-1", "4294967295", "4294967296"} {
		if gid, err := LookupGroup(name); err == nil {
			t.Errorf("%q is group %d", name, gid)
		}
	}
}

func TestPeerOf(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sock")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	far, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	p, ok := PeerOf(far)
	if !ok || int(p.UID) != os.Getuid() || int(p.GID) != os.Getgid() || int(p.PID) != os.Getpid() {
		t.Errorf("the peer is %+v, %v", p, ok)
	}
	groups, err := os.Getgroups()
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range groups {
		if !slices.Contains(p.Groups, uint32(g)) {
			t.Errorf("groups %v, want %v", p.Groups, groups)
		}
	}
	if _, ok := PeerOf(nil); ok {
		t.Error("nobody is somebody")
	}
}

// TestPeerGroups has a process with many groups at the other end, which ends before it is
// asked about.
func TestPeerGroups(t *testing.T) {
	const what = "PRIVILEGED TEST cannot run: it must be root to start a process with other groups"
	if os.Geteuid() != 0 {
		if os.Getenv("SVCCTL_REQUIRE_PRIVILEGED") == "1" {
			t.Fatal(what)
		}
		t.Skip(what)
	}
	if path := os.Getenv("SVCCTL_TEST_DIAL"); path != "" {
		if _, err := net.Dial("unix", path); err != nil {
			t.Fatal(err)
		}
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{0, 1, 64, 65, 1000} {
		ln, err := net.Listen("unix", filepath.Join(t.TempDir(), strconv.Itoa(n)))
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		var groups []uint32
		for i := range n {
			groups = append(groups, uint32(100+i))
		}
		cmd := exec.Command(self, "-test.run=^TestPeerGroups$")
		cmd.Env = append(os.Environ(), "SVCCTL_TEST_DIAL="+ln.Addr().String())
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 0, Gid: 77, Groups: groups}}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		conn, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		p, ok := PeerOf(conn)
		_ = conn.Close()
		if !ok || p.GID != 77 || !slices.Equal(p.Groups, groups) {
			t.Errorf("with %d groups: gid %d and %d groups, %v", n, p.GID, len(p.Groups), ok)
		}
	}
}
