package engine

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// A small file system that fills up, and one that turns read-only: in a mount namespace
// of a process of its own.
func TestRealFullAndReadOnlyDisk(t *testing.T) {
	requireRoot(t)
	if os.Getenv("SVCCTL_DISK_TEST") == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestRealFullAndReadOnlyDisk$", "-test.v")
		cmd.Env = append(os.Environ(), "SVCCTL_DISK_TEST="+t.TempDir())
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	dir := os.Getenv("SVCCTL_DISK_TEST")
	if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_RDONLY, "mode=0700"); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenFile(dir, nil); err == nil || !strings.Contains(err.Error(), "data directory "+dir+" has no state, and its file system is read-only: mount it writable") {
		t.Errorf("a first start on a read-only disk: %v", err)
	}
	if _, readOnly, err := Space(dir); !readOnly || err != nil {
		t.Errorf("the read-only disk: %t, %v", readOnly, err)
	}
	if err := syscall.Unmount(dir, 0); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=512k,mode=0700"); err != nil {
		t.Fatal(err)
	}
	f := mustOpenFile(t, dir)
	fill(t, f, 1, 1)
	big := Transaction{CompareKey: "head", CompareRevision: 1, Puts: []Pair{{Key: "head", Revision: 2}, {Key: "big", Value: make([]byte, 1<<20)}}}
	if err := f.Commit(big); !errors.Is(err, ErrNoSpace) {
		t.Fatalf("a full disk: %v", err)
	}
	if free, readOnly, err := Space(dir); free < 0 || free >= 512<<10 || readOnly || err != nil {
		t.Errorf("the space of a disk of 512 KiB is %d, read-only %t, %v", free, readOnly, err)
	}
	big.Puts[1].Value = make([]byte, 10)
	if err := f.Commit(big); err != nil {
		t.Fatalf("something smaller: %v", err)
	}
	want := dump(t, f)
	f.Close()
	if err := syscall.Mount("", dir, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	f = mustOpenFile(t, dir)
	if got := dump(t, f); got != want {
		t.Errorf("read-only: got\n%s\nwant\n%s", got, want)
	}
	if err := f.Commit(Transaction{CompareKey: "head", CompareRevision: 2}); err == nil || !strings.Contains(err.Error(), "read-only") {
		t.Errorf("a commit to a read-only disk: %v", err)
	}
}

// Who has no right to make the data directory is told that root has it.
func TestDataDirectoryWithoutRights(t *testing.T) {
	requireRoot(t)
	dir := filepath.Join(t.TempDir(), "data")
	if err := os.Chmod(filepath.Dir(dir), 0o700); err != nil {
		t.Fatal(err)
	}
	refused := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with what it is
		if _, err := unix.SetfsuidRetUid(65534); err != nil {
			refused <- err
			return
		}
		_, err := OpenFile(dir, nil)
		refused <- err
	}()
	if err := <-refused; err == nil || !strings.Contains(err.Error(), "make data directory "+dir+": ") || !strings.HasSuffix(err.Error(), "permission denied; run as root, or choose another one with --data-dir") {
		t.Errorf("without rights: %v", err)
	}
}
