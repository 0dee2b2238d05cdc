package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"time"
)

// stoppedAfter is the silence of the socket after which the server's process is checked for being
// stopped (SIGSTOP). A busy one is waited for longer.
const stoppedAfter = callTimeout

// errStopped ends a request to a process that is stopped.
var errStopped = errors.New("the process is stopped")

// peer is the process that serves on a socket.
type peer struct {
	pid     int32 // 0: not known, as from another PID namespace
	stopped bool  // by a signal, or by a debugger
}

// peerOf asks the kernel for the process that listens on a socket (SO_PEERCRED, unix(7)): a process that is
// stopped takes no connection, but the kernel does for it.
func peerOf(socket string) (p peer) {
	conn, err := net.DialTimeout("unix", socket, dialTimeout)
	if err != nil {
		return p
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return p
	}
	_ = raw.Control(func(fd uintptr) {
		if cred, err := syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED); err == nil {
			p.pid = cred.Pid
		}
	})
	p.stopped = p.pid > 0 && isStopped(p.pid)
	return p
}

// isStopped reads the state of a process: the third field of stat, after the name in
// parentheses (proc_pid_stat(5)).
func isStopped(pid int32) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	return len(fields) > 0 && (fields[0] == "T" || fields[0] == "t")
}

// watchStopped cancels a request over the socket when the process there is stopped. The
// function that it returns ends the watch.
func (c *Client) watchStopped(cancel context.CancelCauseFunc) (end func()) {
	if c.Remote() {
		return func() {}
	}
	timer := time.AfterFunc(c.stoppedAfter, func() {
		if peerOf(c.place).stopped {
			cancel(errStopped)
		}
	})
	return func() { timer.Stop() }
}

// silence describes an appliance that has taken a request and does not answer.
func (e *UnreachableError) silence() string {
	who := "the appliance at " + e.Socket
	if e.peer.pid > 0 {
		who = fmt.Sprintf("the appliance (pid %d)", e.peer.pid)
	}
	text := who + " did not answer"
	if e.After > 0 {
		text += fmt.Sprintf(" within %d s", int(e.After.Round(time.Second).Seconds()))
	}
	if e.peer.stopped {
		return fmt.Sprintf("%s: it is stopped (SIGSTOP); packets flow on; `kill -CONT %d` lets it go on", text, e.peer.pid)
	}
	return text + ": it is busy, or waits for its disk: its log may have the reason; packets flow on"
}
