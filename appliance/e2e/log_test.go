package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// logToPipe has the appliance log to a pipe, and gives the end that reads: it is not read until
// the test does.
func (b *box) logToPipe(t *testing.T) *os.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "log")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = reader.Close() })
	b.svcctl.Wrapper = []string{"sh", "-c", `exec 2>"$0"; exec "$@"`, path}
	return reader
}

// launched starts the appliance and waits until everything is programmed, as its status says.
func (b *box) launched(t *testing.T) {
	t.Helper()
	b.svcctl.Launch()
	if _, errOut, code := b.svcctl.Svcctl("wait", "--timeout", syncTimeout.String()); code != 0 { // it waits for a process that begins, too
		t.Fatalf("svcctl wait: exit code %d: %s", code, errOut)
	}
}

// changes asserts that a change of a file and one by a client get to the kernel.
func (b *box) changes(t *testing.T) {
	t.Helper()
	b.write("web.yaml", b.webDocuments(b.R1))
	eventually(t, syncTimeout, func() error {
		for _, f := range families {
			if reply, err := b.IN.Ask("tcp", f.at(f.vip(41), 80)); err != nil || reply.Server != "R1" {
				return fmt.Errorf("%s: answered by %q, %v", f, reply.Server, err)
			}
		}
		return nil
	})
	file := filepath.Join(t.TempDir(), "more.yaml")
	if err := os.WriteFile(file, []byte(strings.Join(b.many(ipv4, 1, 1), "---\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, errOut, code := b.svcctl.Svcctl("apply", "-f", file, "--wait="+syncTimeout.String()); code != 0 {
		t.Errorf("svcctl apply: exit code %d: %s", code, errOut)
	}
}

func TestP09_logThatNobodyReads(t *testing.T) {
	b := newBox(t, metered)
	b.write("web.yaml", b.webDocuments(b.L1))
	reader := b.logToPipe(t)
	b.launched(t)
	// A line each, more than the queue and the pipe take.
	reason := strings.Repeat("unknown", 20)
	for i := range 3000 {
		b.svcctl.Manifests.WriteInPlace(fmt.Sprintf("bad%04d.yaml", i),
			fmt.Sprintf("{apiVersion: v1, kind: Service, metadata: {name: bad%d}, spec: {%s: 1, clusterIP: None}}", i, reason))
	}
	b.changes(t)
	eventually(t, 3*syncTimeout, func() error {
		if dropped := b.metric(t, "svcctl_log_dropped_total"); dropped == 0 {
			return fmt.Errorf("no line of the log is dropped")
		}
		return nil
	})

	// Once it is read, the log goes on and tells of the gap.
	if err := reader.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	told := make(chan bool, 1)
	stopReading := make(chan struct{})
	go func() {
		var text strings.Builder
		buf := make([]byte, 1<<20)
		for !strings.Contains(text.String(), "lines of this log were dropped") {
			n, err := reader.Read(buf)
			if err != nil {
				told <- false
				return
			}
			text.Reset()
			text.Write(buf[:n])
		}
		told <- true
		<-stopReading // it is not read from here on
	}()
	if !<-told {
		t.Error("the log does not say that lines were dropped")
	}
	close(stopReading)

	// It ends when it is asked to, although its log is not read then.
	for i := range 3000 {
		b.svcctl.Manifests.WriteInPlace(fmt.Sprintf("bad%04d.yaml", i),
			fmt.Sprintf("{apiVersion: v1, kind: Service, metadata: {name: bad%d}, spec: {other%s: 1, clusterIP: None}}", i, reason))
	}
	b.svcctl.Stop()
	for _, f := range families {
		if reply, err := b.IN.Ask("tcp", f.at(f.vip(41), 80)); err != nil || reply.Server != "R1" {
			t.Errorf("%s: after the stop answered by %q, %v", f, reply.Server, err)
		}
	}
}

func TestP09_logThatIsClosed(t *testing.T) {
	b := newBox(t, nil)
	b.write("web.yaml", b.webDocuments(b.L1))
	reader := b.logToPipe(t)
	b.launched(t)
	if err := reader.Close(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		b.svcctl.Signal(syscall.SIGHUP) // logs a line
	}
	b.svcctl.Manifests.Write("bad.yaml", "{apiVersion: v1, kind: Service, metadata: {name: bad}, spec: {unknown: 1}}")
	b.changes(t)
	if !b.svcctl.Running() {
		t.Error("it ended with its log")
	}
	b.svcctl.Stop()
	b.serves(t, "after the stop")
}
