package kubectl

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// A script is a file of testdata: files, commands, and what must come of them. Its lines:
//
//	# a comment
//	=== NAME          a file of this name, up to a line ===
//	$ COMMAND         a command of the shell
//	& NAME COMMAND    the same, in the background
//	output NAME       what a command in the background has written so far
//	end NAME          ... and it must end by itself
//	restart, kill     of the appliance; it is running again afterwards
//	ours              it needs the appliance itself, not only an API (see -against)
//
// and after a command:
//
//	> TEXT            a line of its output holds TEXT; blanks count as one
//	= TEXT            its output is TEXT; each further line is a = again
//	! TEXT            its output does not hold TEXT
//	~ EXPRESSION      its output matches
//	e> e= e! e~       the same for what it wrote to standard error
//	exit N            its exit code; 0 without this line
//	within DURATION   it is tried again for so long
//
// A command that ends with 0 writes nothing to standard error, unless the script says
// what. $NS is the script's namespace, $MANIFESTS the watched directory.
type script struct {
	name  string
	files map[string]string
	steps []step
	// alone is set for a script that restarts the appliance, so that no other script runs at the
	// same time.
	alone bool
	// ours is set for a script that needs svcctl itself, not only an API.
	ours bool
}

type step struct {
	line    int
	verb    string // $, &, output, end, restart, kill
	name    string // of a command in the background
	command string
	checks  []check
	exit    int
	within  time.Duration
}

// check is a line about the output of a step.
type check struct {
	line       int
	stderr     bool
	kind       byte // > = ! ~
	text       string
	expression *regexp.Regexp
}

// parse reads a script.
func parse(name, content string) (*script, error) {
	s := &script{name: name, files: map[string]string{}}
	lines := strings.Split(content, "\n")
	for i := 0; i < len(lines); i++ {
		line := lines[i]
		if file, is := strings.CutPrefix(line, "=== "); is {
			end := i + 1
			for end < len(lines) && lines[end] != "===" {
				end++
			}
			if end == len(lines) {
				return nil, fmt.Errorf("%s:%d: the file does not end", name, i+1)
			}
			s.files[file] = strings.Join(lines[i+1:end], "\n") + "\n"
			i = end
			continue
		}
		if strings.TrimSpace(line) == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if err := s.take(i+1, line); err != nil {
			return nil, fmt.Errorf("%s:%d: %w: %s", name, i+1, err, line)
		}
	}
	return s, nil
}

// take reads a line that is a step, or belongs to one.
func (s *script) take(number int, line string) error {
	word, rest, _ := strings.Cut(line, " ")
	switch word {
	case "$":
		s.steps = append(s.steps, step{line: number, verb: word, command: rest})
		s.ours = s.ours || strings.Contains(rest, "svcctl ") || strings.Contains(rest, "$MANIFESTS")
	case "&":
		name, command, _ := strings.Cut(rest, " ")
		s.steps = append(s.steps, step{line: number, verb: word, name: name, command: command})
	case "output", "end":
		s.steps = append(s.steps, step{line: number, verb: word, name: rest})
	case "ours":
		s.ours = true
	case "restart", "kill":
		s.steps = append(s.steps, step{line: number, verb: word})
		s.alone, s.ours = true, true
	default:
		if len(s.steps) == 0 {
			return fmt.Errorf("before the first command")
		}
		return s.steps[len(s.steps)-1].take(number, word, rest)
	}
	return nil
}

// take reads a line about a step.
func (s *step) take(number int, word, rest string) (err error) {
	kind, stderr := strings.CutPrefix(word, "e")
	switch {
	case word == "exit":
		s.exit, err = strconv.Atoi(rest)
	case word == "within":
		s.within, err = time.ParseDuration(rest)
	case len(kind) == 1 && strings.Contains(">=!~", kind):
		c := check{line: number, stderr: stderr, kind: kind[0], text: rest}
		if c.kind == '~' {
			c.expression, err = regexp.Compile(rest)
		}
		if last := len(s.checks) - 1; c.kind == '=' && last >= 0 && s.checks[last].kind == '=' && s.checks[last].stderr == stderr {
			s.checks[last].text += "\n" + rest
			return nil
		}
		s.checks = append(s.checks, c)
	default:
		return fmt.Errorf("no such line")
	}
	return err
}

// invocations counts how often the script calls kubectl.
func (s *script) invocations() (n int) {
	for _, step := range s.steps {
		n += strings.Count(step.command, "kubectl ")
	}
	return n
}

// verify compares what a command wrote with what the script says, expanding variables.
func (s *step) verify(stdout, stderr string, exit int, expand func(string) string) error {
	var wrong []string
	if exit != s.exit {
		wrong = append(wrong, fmt.Sprintf("exit code %d, want %d", exit, s.exit))
	}
	quiet := s.exit == 0
	for _, c := range s.checks {
		out := stdout
		if c.stderr {
			out, quiet = stderr, false
		}
		if what := c.verify(out, expand(c.text)); what != "" {
			wrong = append(wrong, fmt.Sprintf("line %d: %s", c.line, what))
		}
	}
	if quiet && stderr != "" {
		wrong = append(wrong, "it wrote to standard error")
	}
	if wrong == nil {
		return nil
	}
	return fmt.Errorf("%s\nstdout:\n%s\nstderr:\n%s", strings.Join(wrong, "\n"), stdout, stderr)
}

func (c check) verify(out, text string) string {
	squeezed := strings.Join(strings.Fields(out), " ")
	wanted := strings.Join(strings.Fields(text), " ")
	switch {
	case c.kind == '>' && !strings.Contains(squeezed, wanted):
		return "no " + strconv.Quote(text)
	case c.kind == '!' && strings.Contains(squeezed, wanted):
		return "unwanted " + strconv.Quote(text)
	case c.kind == '=' && strings.TrimSpace(out) != strings.TrimSpace(text):
		return "not just " + strconv.Quote(text)
	case c.kind == '~' && !c.expression.MatchString(out):
		return "no match of " + text
	}
	return ""
}

// load reads all scripts.
func load() ([]*script, error) {
	entries, err := os.ReadDir("testdata")
	if err != nil {
		return nil, err
	}
	var all []*script
	for _, entry := range entries {
		name, is := strings.CutSuffix(entry.Name(), ".txt")
		if !is {
			continue
		}
		content, err := os.ReadFile("testdata/" + entry.Name())
		if err != nil {
			return nil, err
		}
		s, err := parse(name, string(content))
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}
