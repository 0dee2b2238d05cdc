package client

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// stoppedSocket in the environment makes this program a server that is stopped: see TestStopped.
const stoppedSocket = "SVCCTL_TEST_STOPPED_SOCKET"

func init() {
	socket := os.Getenv(stoppedSocket)
	if socket == "" {
		return
	}
	if _, err := net.Listen("unix", socket); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("listening")
	_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	select {}
}

// A server that is stopped takes connections, which the kernel does for it, and never answers:
// the error says so, and who it is.
func TestStopped(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	server := exec.Command(os.Args[0])
	server.Env = append(os.Environ(), stoppedSocket+"="+socket)
	out, err := server.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Process.Kill(); _ = server.Wait() }()
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "listening\n" {
		t.Fatalf("%q, %v", line, err)
	}
	for !isStopped(int32(server.Process.Pid)) {
		time.Sleep(time.Millisecond)
	}
	c := New(socket)
	c.stoppedAfter = time.Millisecond
	_, err = c.Get(t.Context(), "/api/v1/namespaces/default/services/web")
	if err == nil {
		t.Fatal("a process that is stopped has answered")
	}
	for _, want := range []string{fmt.Sprintf("the appliance (pid %d) did not answer within", server.Process.Pid), "it is stopped (SIGSTOP); packets flow on", "kill -CONT"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
	if p := peerOf(filepath.Join(t.TempDir(), "none")); p != (peer{}) {
		t.Errorf("%+v", p)
	}
	if isStopped(int32(os.Getpid())) {
		t.Error("this process is stopped")
	}
}
