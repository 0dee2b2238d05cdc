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
	"time"

	"golang.org/x/sys/unix"
)

// ErrRequested is the cause of the end of a context when the process is to hand over to a new program.
var ErrRequested = errors.New("the program is handed over to a new one")

// IsRequested reports whether a context ended for a hand-over.
func IsRequested(ctx context.Context) bool { return errors.Is(context.Cause(ctx), ErrRequested) }

const (
	// variable names the descriptor of the state to the new program; probe as its value asks whether the
	// program takes over.
	variable = "SVCCTL_HANDOVER"
	probe    = "probe"
	// answer is the output of such a program. The number is that of the state's form.
	answer = "svcctl hand-over 1"
	// patience bounds the wait for a program's answer.
	patience = 10 * time.Second
)

// Answer replies to another process that asks whether this program can take over, and reports
// whether it was asked. It is called first of all.
func Answer(out io.Writer) (asked bool) {
	if os.Getenv(variable) != probe {
		return false
	}
	_, _ = fmt.Fprintln(out, answer) // on an error the other process gets nothing, and notices
	return true
}

// Program is the path of this program, or of the one that has taken its place.
func Program() (string, error) {
	path, err := exec.LookPath(os.Args[0])
	if err != nil {
		return "", fmt.Errorf("find the program to hand over to: %w", err)
	}
	return path, nil
}

// Check asks a program whether it takes over what this one hands over.
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

// Exec executes a program in place of this process, with the same arguments, a state, and descriptors
// that stay open by their numbers. It returns only with an error.
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

// State returns what the program before left in the same process; nil: nothing. A second call returns nothing.
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
