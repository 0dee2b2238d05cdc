package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"svcctl.io/svcctl/api/client"
)

// The exit codes.
const (
	exitDone        = 0
	exitNo          = 1 // the answer is no, or something was refused
	exitUsage       = 2
	exitUnreachable = 3 // the appliance cannot be reached
)

// print writes text to stdout.
func (p *program) print(text string) error {
	if _, err := io.WriteString(p.stdout, text); err != nil {
		return fmt.Errorf("write to stdout: %w", err)
	}
	return nil
}

// usageError is an error of the command line or the configuration.
type usageError struct{ problems []error }

func (e *usageError) Error() string   { return errors.Join(e.problems...).Error() }
func (e *usageError) Unwrap() []error { return e.problems }

// usagef is a usageError with one problem.
func usagef(format string, args ...any) error {
	return &usageError{problems: []error{fmt.Errorf(format, args...)}}
}

// exitCode is the exit code that goes with an error.
func exitCode(err error) int {
	if err == nil {
		return exitDone
	}
	if e, ok := errors.AsType[*exitError](err); ok {
		return e.code
	}
	if _, ok := errors.AsType[*usageError](err); ok {
		return exitUsage
	}
	if _, ok := errors.AsType[*client.UnreachableError](err); ok {
		return exitUnreachable
	}
	return exitNo
}

// lines are the lines of an error, without empty ones.
func lines(err error) []string {
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

// exitError ends a verb with an exit code of its own.
type exitError struct {
	code int
	err  error // nil: all is said
}

func (e *exitError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }
