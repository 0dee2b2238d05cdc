package api_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

func needRoot(t *testing.T, what string) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("SVCCTL_REQUIRE_PRIVILEGED") == "1" {
		t.Fatal(what)
	}
	t.Skip(what)
}

// openTo lets others into a directory of a test, and into those that it is in.
func openTo(t *testing.T, dir string) {
	t.Helper()
	for ; strings.HasPrefix(dir, os.TempDir()+"/"); dir = dir[:strings.LastIndex(dir, "/")] {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// asked is another user of this box who asks the server.
type asked struct{ credential syscall.Credential }

func as(t *testing.T, uid, gid uint32, groups ...uint32) *asked {
	t.Helper()
	return &asked{syscall.Credential{Uid: uid, Gid: gid, Groups: groups}}
}

func (a *asked) String() string {
	return fmt.Sprintf("uid %d gid %d groups %d", a.credential.Uid, a.credential.Gid, a.credential.Groups)
}

// The variables that make this test program such a user's client.
const (
	askSocket = "SVCCTL_TEST_SOCKET"
	askMethod = "SVCCTL_TEST_METHOD"
	askPath   = "SVCCTL_TEST_PATH"
)

// TestMain asks once, when it is told to, in place of the tests.
func TestMain(m *testing.M) {
	if os.Getenv(askSocket) == "" {
		os.Exit(m.Run())
	}
	client := http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", os.Getenv(askSocket))
		},
	}}
	req, err := http.NewRequest(os.Getenv(askMethod), "http://svcctl"+os.Getenv(askPath), os.Stdin)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	resp, err := client.Do(req)
	if err != nil {
		fmt.Println(0, err)
		return
	}
	fmt.Println(resp.StatusCode)
	_, _ = io.Copy(os.Stdout, resp.Body)
}

// do asks the server on a socket and gives code and body; 0 and why when it cannot.
func (a *asked) do(t *testing.T, socket, method, path, body string) (code int, answer string) {
	t.Helper()
	self, err := os.Open("/proc/self/exe") // whose directory others may not enter
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	cmd := exec.Command("/proc/self/fd/3")
	cmd.ExtraFiles = []*os.File{self}
	cmd.Dir = "/"
	cmd.Env = []string{askSocket + "=" + socket, askMethod + "=" + method, askPath + "=" + path}
	if body != "" {
		cmd.Stdin = strings.NewReader(body)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &a.credential}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", a, err, out)
	}
	first, answer, _ := strings.Cut(string(out), "\n")
	if _, err := fmt.Sscan(first, &code); err != nil {
		t.Fatalf("%s: %q", a, out)
	}
	return code, answer
}
