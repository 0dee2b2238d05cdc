package script

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"svcctl.io/svcctl/nft"
)

// Box is an appliance on the host gw1, in one of the modes. Methods without an error fail
// the test themselves.
type Box interface {
	// Write makes or replaces a manifest file at once; Remove removes it.
	Write(name, content string)
	Remove(name string)
	// Start starts the appliance and waits until everything is programmed. Stop ends it in
	// good order, Kill without a chance to tidy up.
	Start()
	Stop()
	Kill()
	// Sync waits until all that was written is accepted and in the kernel.
	Sync() error
	// Again waits a moment and reports whether what failed is worth another try.
	Again(attempt int) bool
	// Socket is the path of the API's socket.
	Socket() string
	// Ruleset reads the appliance's tables from the kernel.
	Ruleset() (nft.Ruleset, error)
	// Transactions counts the appliance's nf_tables transactions since the last call.
	Transactions() int
	// Flush removes all tables, and Empty the elements of a set, as another program would.
	Flush()
	Empty(family nft.Family, set string)
	// Address adds an address to an interface of the box, or removes it.
	Address(add bool, ifname, prefix string)
	// Outcomes returns all possible outcomes of a question; expected is the number of different
	// outcomes that the script names.
	Outcomes(q Question, expected int) []Outcome
	// Ask asks n times, each time as a new connection.
	Ask(q Question, n int) []Outcome
}

// Command is a command of scripts. Its error fails the script.
type Command func(s *Session, args []string) error

// Mode is a way to run scripts.
type Mode struct {
	Name string // as the scripts' line "runs" has it
	// New makes a box. Its files are below dir, and flags are those of svcctl serve.
	New func(t testing.TB, dir string, flags Flags) Box
	// Update rewrites the expected sections of scripts from what comes out.
	Update bool
	// Commands has the commands of this mode besides the common ones.
	Commands map[string]Command
}

// modes are the names of all modes; each is a condition too: [wire] COMMAND.
var modes = []string{"memory", "wire"}

// Session is a script that runs.
type Session struct {
	ts      *testscript.TestScript
	t       testing.TB
	mode    Mode
	dir     string
	flags   Flags
	made    Box
	watches map[string]*watch
	healthy string // the ruleset before the last fault
	try     int    // of a command that eventually repeats; 0: it is run once
	neg     bool   // whether the command has to fail
	out     strings.Builder
}

// Run runs those scripts of a directory that name the mode.
func Run(t *testing.T, dir string, mode Mode) {
	files, err := scripts(dir, mode.Name)
	if err != nil {
		t.Fatal(err)
	}
	type key struct{}
	commands := map[string]func(*testscript.TestScript, bool, []string){}
	for name, command := range mode.all() {
		commands[name] = func(ts *testscript.TestScript, neg bool, args []string) {
			s := ts.Value(key{}).(*Session)
			s.ts = ts
			s.run(name, command, neg, args)
		}
	}
	testscript.Run(t, testscript.Params{
		Files: files, Cmds: commands, UpdateScripts: mode.Update, RequireUniqueNames: true,
		Condition: func(condition string) (bool, error) {
			if !slices.Contains(modes, condition) {
				return false, fmt.Errorf("no condition %q", condition)
			}
			return condition == mode.Name, nil
		},
		Setup: func(env *testscript.Env) error {
			tb, is := env.T().(testing.TB)
			if !is {
				return errors.New("scripts need a testing.T")
			}
			s := &Session{t: tb, mode: mode, dir: env.WorkDir, flags: standardFlags(), watches: map[string]*watch{}}
			env.Defer(s.close)
			env.Values[key{}] = s
			return nil
		},
	})
}

// scripts lists the scripts that name a mode in their line "runs".
func scripts(dir, mode string) ([]string, error) {
	all, err := filepath.Glob(filepath.Join(dir, "*.txtar"))
	if err != nil || len(all) == 0 {
		return nil, fmt.Errorf("no scripts in %s: %w", dir, err)
	}
	var chosen []string
	for _, name := range all {
		content, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		modes, err := modesOf(string(content))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if slices.Contains(modes, mode) {
			chosen = append(chosen, name)
		}
	}
	return chosen, nil
}

// modesOf reads the line "runs MODE..." of a script.
func modesOf(content string) ([]string, error) {
	for line := range strings.Lines(content) {
		words := strings.Fields(line)
		switch {
		case len(words) > 1 && words[0] == "runs":
			for _, mode := range words[1:] {
				if !slices.Contains(modes, mode) {
					return nil, fmt.Errorf("mode %q is none of %q", mode, modes)
				}
			}
			return words[1:], nil
		case len(words) > 0 && !strings.HasPrefix(words[0], "#"):
			return nil, errors.New(`the first command is not "runs memory", "runs wire" or "runs memory wire"`)
		}
	}
	return nil, errors.New("the script has no commands")
}

// all returns the commands of the mode.
func (m Mode) all() map[string]Command {
	commands := maps.Clone(m.Commands)
	if commands == nil {
		commands = map[string]Command{}
	}
	maps.Copy(commands, common())
	return commands
}

// Try counts the runs of a command that eventually repeats, from 1; 0: it is run once.
func (s *Session) Try() int { return s.try }

// Box makes the box when it is needed first.
func (s *Session) Box() Box {
	if s.made == nil {
		s.made = s.mode.New(s.t, s.dir, s.flags)
	}
	return s.made
}

func (s *Session) close() {
	for _, w := range s.watches {
		w.cancel()
	}
}

// run runs a command; with neg it has to fail.
func (s *Session) run(name string, command Command, neg bool, args []string) {
	s.out.Reset()
	s.neg = neg
	err := command(s, args)
	if s.out.Len() > 0 {
		fmt.Fprint(s.ts.Stdout(), s.out.String())
	}
	switch {
	case err != nil && !neg:
		s.ts.Fatalf("%s: %v", name, err)
	case err == nil && neg:
		s.ts.Fatalf("%s succeeded, want an error", name)
	case err != nil:
		s.ts.Logf("%v", err)
	}
}

// Printf writes to the standard output of the command, for the commands stdout and cmp.
func (s *Session) Printf(format string, args ...any) { fmt.Fprintf(&s.out, format, args...) }

// File reads a file of the script.
func (s *Session) File(name string) string { return s.ts.ReadFile(name) }

// Path returns the path of a file of the script.
func (s *Session) Path(name string) string { return s.ts.MkAbs(name) }

// arrow splits arguments at "->".
func arrow(args []string) (before, after []string, err error) {
	i := slices.Index(args, "->")
	if i < 0 || i == len(args)-1 {
		return nil, nil, errors.New("write what has to come out behind ->")
	}
	return args[:i], args[i+1:], nil
}

// usage returns the error of a command that got other arguments than these.
func usage(text string) error { return fmt.Errorf("usage: %s", text) }

// Flags has flags of svcctl serve by name, each with its values.
type Flags map[string][]string

func standardFlags() Flags {
	return Flags{
		"node-name":                {BoxName},
		"service-cluster-ip-range": {"172.30.0.0/16,fd00:172:30::/112"},
		"cluster-cidr":             {"10.0.0.0/8,fd00:10::/32"},
		"load-balancer-pool":       {"198.51.100.0/28", "2001:db8:198::/124"},
		"allow-mass-removal":       {"true"},
	}
}
