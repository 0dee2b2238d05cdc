package cli

import (
	"errors"
	"fmt"
	"strings"

	"svcctl.io/svcctl/api/client"
)

// Flatten takes errors.Join apart.
func Flatten(err error) []error {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var out []error
		for _, e := range joined.Unwrap() {
			out = append(out, Flatten(e)...)
		}
		return out
	}
	return []error{err}
}

// The exit codes.
const (
	ExitDone        = 0
	ExitNo          = 1 // the answer is no, or something was refused
	ExitUsage       = 2
	ExitUnreachable = 3 // the appliance cannot be reached
)

// UsageError is an error of the command line or the configuration.
type UsageError struct{ Problems []error }

func (e *UsageError) Error() string { return errors.Join(e.Problems...).Error() }

func (e *UsageError) Unwrap() []error { return e.Problems }

// Usagef is a usageError with one problem.
func Usagef(format string, args ...any) error {
	return &UsageError{Problems: []error{fmt.Errorf(format, args...)}}
}

// ExitCode is the exit code that goes with an error.
func ExitCode(err error) int {
	if err == nil {
		return ExitDone
	}
	if e, ok := errors.AsType[*ExitError](err); ok {
		return e.Code
	}
	if _, ok := errors.AsType[*UsageError](err); ok {
		return ExitUsage
	}
	if _, ok := errors.AsType[*client.UnreachableError](err); ok {
		return ExitUnreachable
	}
	return ExitNo
}

// Lines are the lines of an error, without empty ones.
func Lines(err error) []string {
	if err == nil {
		return nil
	}
	var out []string
	for line := range strings.Lines(err.Error()) {
		if line = strings.TrimSpace(line); line != "" {
			out = append(out, line)
		}
	}
	return out
}

// ExitError ends a verb with an exit code of its own.
type ExitError struct {
	Code int
	Err  error // nil: all is said
}

func (e *ExitError) Error() string {
	if e.Err == nil {
		return ""
	}
	return e.Err.Error()
}

func (e *ExitError) Unwrap() error { return e.Err }
