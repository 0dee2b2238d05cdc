package handover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/appliance/listen"
	"svcctl.io/svcctl/appliance/task"
)

// ErrRequested is the cancellation cause of a context when the process must hand over to a new program.
var ErrRequested = errors.New("the program is handed over to a new one")

// IsRequested reports whether a context ended for a hand-over.
func IsRequested(ctx context.Context) bool { return errors.Is(context.Cause(ctx), ErrRequested) }

const (
	// variable is an environment variable with the descriptor number of the memfd that holds the state for the new program. With the value probe it
	// asks a program whether it supports the hand-over.
	variable = "SVCCTL_HANDOVER"
	probe    = "probe"
	// answer is the output of a program that supports the hand-over. The number at its end is the version of the state's encoding.
	answer = "svcctl hand-over 1"
	// patience is the longest wait for the output of a program that is asked whether it supports the hand-over.
	patience = 10 * time.Second
)

// Answer prints answer and returns true if another process runs this program to find out whether it supports the hand-over. main calls it
// before anything else.
func Answer(out io.Writer) (asked bool) {
	if os.Getenv(variable) != probe {
		return false
	}
	_, _ = fmt.Fprintln(out, answer) // on an error the other process gets nothing, and notices
	return true
}

// Program returns the path from which this program was started. An upgrade may have replaced the file since then.
func Program() (string, error) {
	path, err := exec.LookPath(os.Args[0])
	if err != nil {
		return "", fmt.Errorf("find the program to hand over to: %w", err)
	}
	return path, nil
}

// Check runs a program to find out whether it supports the hand-over with this version of the state. It returns an error if not, or after
// 10 seconds.
func Check(ctx context.Context, program string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "--version")
	cmd.Env = append(os.Environ(), variable+"="+probe)
	switch out, err := cmd.Output(); {
	case err != nil:
		return fmt.Errorf("ask %s whether it supports the hand-over: %w", program, err)
	case strings.TrimSpace(string(out)) != answer:
		return fmt.Errorf("%s does not support the hand-over from this version: restart the program instead", program)
	}
	return nil
}

// Exec replaces this process by a program with the given arguments. The program can read state with State, and the descriptors stay open under the
// same numbers. Exec returns only if it fails.
func Exec(program string, args []string, state []byte, descriptors []int) error {
	fd, err := unix.MemfdCreate("svcctl-handover", unix.MFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("keep the state for the new program: %w", err)
	}
	file := os.NewFile(uintptr(fd), "svcctl-handover")
	defer file.Close()
	if _, err := file.Write(state); err != nil {
		return fmt.Errorf("keep the state for the new program: %w", err)
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("keep the state for the new program: %w", err)
	}
	for _, d := range append([]int{fd}, descriptors...) {
		if _, err := unix.FcntlInt(uintptr(d), unix.F_SETFD, 0); err != nil {
			return fmt.Errorf("keep descriptor %d open for the new program: %w", d, err)
		}
	}
	return fmt.Errorf("execute %s: %w", program, unix.Exec(program, args, append(os.Environ(), variable+"="+strconv.Itoa(fd))))
}

// State returns the state that the previous program passed to Exec; nil if there is none. A second call returns nil.
func State() ([]byte, error) {
	text := os.Getenv(variable)
	if text == "" {
		return nil, nil
	}
	if err := os.Unsetenv(variable); err != nil {
		return nil, err
	}
	fd, err := strconv.Atoi(text)
	if err != nil {
		return nil, fmt.Errorf("%s=%q in the environment is no descriptor: leave it out", variable, text)
	}
	file := os.NewFile(uintptr(fd), "svcctl-handover")
	if file == nil {
		return nil, fmt.Errorf("%s=%q in the environment is no descriptor: leave it out", variable, text)
	}
	defer file.Close()
	state, err := io.ReadAll(file)
	if err != nil {
		return nil, fmt.Errorf("read what the program before left, descriptor %d: %w", fd, err)
	}
	return state, nil
}

// Store is systemd's file descriptor store, which keeps up to FileDescriptorStoreMax descriptors for the next process of the unit. Without systemd
// nothing is kept.
type Store struct {
	socket string

	mu    sync.Mutex      // guards drops; sends never block
	drops map[string]bool // names for which Drop could not send its request yet
}

// NewStore returns the store of the unit of this process.
func NewStore() *Store { return &Store{socket: os.Getenv("NOTIFY_SOCKET")} }

// Keep passes a descriptor to systemd, which stores it under a name of letters, digits, dots and dashes. It never blocks. If systemd does not read
// its socket, Keep fails with EAGAIN and the descriptor is not stored.
func (s *Store) Keep(name string, conn syscall.Conn) error {
	s.mu.Lock()
	delete(s.drops, name) // it would take the new one away
	s.mu.Unlock()
	return listen.ControlOf(conn, func(fd int) error { return s.send("FDSTORE=1\nFDNAME="+name, unix.UnixRights(fd)) })
}

// Drop makes systemd close the descriptors stored under a name. It never blocks. If systemd does not read its socket, the request is repeated in the
// background.
func (s *Store) Drop(name string) error {
	if err := s.send("FDSTOREREMOVE=1\nFDNAME="+name, nil); !errors.Is(err, unix.EAGAIN) {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.drops == nil {
		s.drops = map[string]bool{}
	}
	if s.drops[name] = true; len(s.drops) == 1 {
		time.AfterFunc(notifyAgain, s.dropAgain)
	}
	return nil
}

// dropAgain sends the requests that Drop could not send, and schedules itself again while some are left.
func (s *Store) dropAgain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.drops {
		if errors.Is(s.send("FDSTOREREMOVE=1\nFDNAME="+name, nil), unix.EAGAIN) { // it does not wait
			break
		}
		delete(s.drops, name)
	}
	if len(s.drops) > 0 {
		time.AfterFunc(notifyAgain, s.dropAgain)
	}
}

// notifyAgain is the interval at which Notify and Drop repeat a send that failed with EAGAIN.
const notifyAgain = 20 * time.Millisecond

// Notify sends a state of the process (sd_notify(3)) to systemd. If systemd does not read its socket, Notify tries again until ctx is done.
func Notify(ctx context.Context, state string) error {
	for {
		err := NewStore().send(state, nil)
		if !errors.Is(err, unix.EAGAIN) {
			return err
		}
		if !task.Sleep(ctx, notifyAgain) {
			return err
		}
	}
}

func (s *Store) send(message string, rights []byte) error {
	if s.socket == "" {
		return nil
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("notify systemd: %w", err)
	}
	defer unix.Close(fd)
	// The name of a socket that is no file begins with @, for package unix too.
	if err := unix.Sendmsg(fd, []byte(message), rights, &unix.SockaddrUnix{Name: s.socket}, unix.MSG_DONTWAIT); err != nil {
		return fmt.Errorf("notify systemd: send to %s: %w", s.socket, err)
	}
	return nil
}

// Kept returns the descriptors that systemd kept for this process, by name. A second call returns none.
func Kept() map[string]*os.File {
	kept := map[string]*os.File{}
	for _, f := range activation.Files(true) {
		if before := kept[f.Name()]; before != nil {
			_ = before.Close() // it was kept twice
		}
		kept[f.Name()] = f
	}
	return kept
}
