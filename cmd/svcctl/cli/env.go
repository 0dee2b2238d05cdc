package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/announce"
	"svcctl.io/svcctl/appliance/checkup"
	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/appliance/discover"
	"svcctl.io/svcctl/appliance/logqueue"
	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/store/manifest"
)

// Env holds everything that a command uses from its environment. It has more than 15 fields: one for each part of the process (streams, environment
// variables, clock) and of the appliance that tests replace.
type Env struct {
	// Client returns a client for the appliance that the options of a verb select. It prints warnings of the appliance to Err.
	Client func(v *Verb) *client.Client

	Version  string
	In       io.Reader
	Out, Err io.Writer
	Log      *logqueue.Queue // queue of log lines for Err; nil until the appliance runs
	// StdinTTY, StderrTTY and StdoutTTY report whether the streams are terminals. Color is set if stdout supports colors.
	StdinTTY, StderrTTY, StdoutTTY, Color bool
	Packaged                              wire.Packaged
	SettingsFile                          string // settings file of the installed package if its systemd units run svcctl; "" if not
	LookupEnv                             func(string) (string, bool)
	Environ                               func() []string
	Exec                                  func(path string, args, env []string) error // syscall.Exec
	Now                                   func() time.Time

	Serve func(ctx context.Context, cfg config.Config, log *slog.Logger) error
	Plan  func(cfg config.Config, paths []string, stdin io.Reader, w io.Writer) (files []string, problems []manifest.Problem, err error)
	Down  func(ctx context.Context) error
	// Left returns the number of frontends that rules in the kernel serve. held reports whether a running process owns the rules.
	Left func() (frontends int, held bool, err error)

	Announce func(ctx context.Context, cfg announce.Config, log *slog.Logger) error
	Discover func(ctx context.Context, cfg discover.Config, log *slog.Logger) error

	// Edit runs an editor command on a file.
	Edit func(ctx context.Context, editor, path string) error

	Doctor func(ctx context.Context, cfg config.Config, serving bool) []checkup.Finding
	// Uplinks checks whether replies from these Service addresses leave through the wrong uplink.
	Uplinks func(vips []netip.Addr) checkup.Finding
}

// Output prints v in the format of the verb's -o; text returns the human-readable
// form, which is the default.
func (env *Env) Output(vb *Verb, v any, text func() string) error {
	switch vb.Option("output").Text() {
	case FormJSON:
		body, err := output.JSON(v)
		if err != nil {
			return err
		}
		return env.Print(body)
	case FormYAML:
		return env.PrintYAML(v)
	}
	return env.Print(text())
}

// PrintYAML prints v as YAML.
func (env *Env) PrintYAML(v any) error {
	body, err := manifest.YAML(v)
	if err != nil {
		return err
	}
	return env.Print(string(body))
}

// PrintLine prints v as one line of JSON, for verbs that print a stream of documents.
func (env *Env) PrintLine(v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode as JSON: %w", err)
	}
	return env.Print(string(body) + "\n")
}

// IsTerminal reports whether f is a terminal.
func IsTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// Print writes text to stdout.
func (env *Env) Print(text string) error {
	if _, err := io.WriteString(env.Out, text); err != nil {
		return fmt.Errorf("write to stdout: %w", err)
	}
	return nil
}

// errDeclined is the error when the user does not answer a question with yes.
var errDeclined = fmt.Errorf("nothing was changed")

// YesOption returns the option --yes, for verbs that ask for confirmation.
func YesOption() *Option {
	return &Option{Name: "yes", Letter: "y", Group: GroupHow, Usage: "do not ask; required without a terminal if there is a question"}
}

// Consent asks the user to confirm a change that cannot be undone without loss. consequence is a clause such as "this removes 1 Service". Consent
// returns nil with --yes, errDeclined if the answer is not yes, and a UsageError if stdin is not a terminal.
func (env *Env) Consent(v *Verb, consequence string) error {
	switch {
	case v.Option("yes").On():
		return nil
	case !env.StdinTTY:
		return Usagef("%s: %s; repeat it with --yes", v.Name, consequence)
	case !env.Confirm(strings.ToUpper(consequence[:1]) + consequence[1:] + ". Go on?"):
		return errDeclined
	}
	return nil
}

// Confirm asks a question on stderr and reports whether the answer was yes.
func (env *Env) Confirm(question string) bool {
	fmt.Fprintf(env.Err, "%s [y/N] ", question)
	answer, _ := bufio.NewReader(env.In).ReadString('\n') // what came before the end counts
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return true
	}
	return false
}

// Flatten returns the errors that err joins (errors.Join), at any depth.
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
	ExitNo          = 1 // negative result, or a request was rejected
	ExitUsage       = 2
	ExitUnreachable = 3 // the appliance cannot be reached
)

// UsageError is an error of the command line or the configuration.
type UsageError struct{ Problems []error }

func (e *UsageError) Error() string { return errors.Join(e.Problems...).Error() }

func (e *UsageError) Unwrap() []error { return e.Problems }

// Usagef returns a UsageError with one problem.
func Usagef(format string, args ...any) error {
	return &UsageError{Problems: []error{fmt.Errorf(format, args...)}}
}

// ExitCode returns the exit code for an error.
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

// Lines returns the nonempty lines of an error message.
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

// ExitError ends a verb with the exit code Code.
type ExitError struct {
	Code int
	Err  error // printed; nil prints nothing
}

func (e *ExitError) Error() string {
	if e.Err == nil {
		return ""
	}
	return e.Err.Error()
}

func (e *ExitError) Unwrap() error { return e.Err }

// Progress is a line on stderr that shows the progress of a long operation. Without a terminal it prints nothing.
type Progress struct {
	mu    sync.Mutex
	w     io.Writer // nil without a terminal
	shown bool
}

func (env *Env) Progress() *Progress {
	if !env.StderrTTY {
		return &Progress{}
	}
	return &Progress{w: env.Err}
}

// Say replaces the text of the progress line.
func (g *Progress) Say(format string, args ...any) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.w != nil {
		g.shown = true
		fmt.Fprintf(g.w, "\r"+format+" ...\x1b[K", args...)
	}
}

// End erases the progress line.
func (g *Progress) End() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shown {
		g.shown = false
		fmt.Fprint(g.w, "\r\x1b[K")
	}
}

// tick is the interval at which a line with an elapsed time is updated.
const tick = time.Second

// Waiting shows a progress line for a long operation: its description, elapsed time and timeout (unless 0). end removes the line.
func (env *Env) Waiting(what func() string, atMost time.Duration) (end func()) {
	if !env.StderrTTY {
		return func() {}
	}
	g, began := env.Progress(), time.Now()
	over, done := make(chan struct{}), make(chan struct{})
	say := func() {
		text := fmt.Sprintf("%s, for %s", what(), time.Since(began).Round(time.Second))
		if atMost > 0 {
			text += fmt.Sprintf(" of at most %s", atMost)
		}
		g.Say("%s", text)
	}
	go func() {
		defer close(done)
		ticks := time.NewTicker(tick)
		defer ticks.Stop()
		for {
			say()
			select {
			case <-ticks.C:
			case <-over:
				return
			}
		}
	}()
	return func() {
		close(over)
		<-done
		g.End()
	}
}

// moving is an io.Writer that shows the number of written bytes on a progress line.
type moving struct {
	*Progress
	what  string
	bytes int64
	shown int64
}

// movingEvery is the number of bytes between two updates of the progress line.
const movingEvery = 1 << 20

func (env *Env) Moving(what string) *moving { return &moving{Progress: env.Progress(), what: what} }

// Write implements io.Writer.
func (m *moving) Write(b []byte) (int, error) {
	m.bytes += int64(len(b))
	if m.bytes-m.shown >= movingEvery {
		m.shown = m.bytes
		m.Say("%d MiB %s", m.bytes>>20, m.what)
	}
	return len(b), nil
}

// Counter counts bytes that are written.
type Counter struct{ atomic.Int64 }

// Write implements io.Writer.
func (c *Counter) Write(b []byte) (int, error) {
	c.Add(int64(len(b)))
	return len(b), nil
}
