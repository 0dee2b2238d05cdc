package script

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/nft"
)

// common returns the commands of every mode. Package documentation describes them.
func common() map[string]Command {
	return map[string]Command{
		"runs":         func(*Session, []string) error { return nil }, // read before the script runs
		"flags":        (*Session).setFlags,
		"write":        (*Session).write,
		"remove":       (*Session).remove,
		"box":          (*Session).control,
		"sync":         func(s *Session, _ []string) error { return s.Box().Sync() },
		"eventually":   (*Session).eventually,
		"objects":      (*Session).objects,
		"problems":     (*Session).problems,
		"api":          (*Session).api,
		"watch":        (*Session).watch,
		"events":       (*Session).events,
		"nft":          (*Session).nft,
		"transactions": (*Session).transactions,
		"connect":      (*Session).connect,
		"ping":         (*Session).ping,
		"answers":      (*Session).answers,
		"flush":        (*Session).flush,
		"empty":        (*Session).empty,
		"healed":       (*Session).healed,
		"address":      (*Session).address,
	}
}

// setFlags: flags --NAME=VALUE..., before the box is made. The first value of a name
// replaces the default, an empty one leaves the flag out.
func (s *Session) setFlags(args []string) error {
	if s.made != nil {
		return errors.New("give flags before the first command that needs the appliance")
	}
	given := Flags{}
	for _, arg := range args {
		name, value, found := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		if !found || !strings.HasPrefix(arg, "--") {
			return usage("flags --NAME=VALUE...")
		}
		given[name] = append(given[name], value)
	}
	for name, values := range given {
		if values[0] == "" {
			values = nil
		}
		s.flags[name] = values
	}
	return nil
}

// Args returns the flags as svcctl serve takes them.
func (f Flags) Args() []string {
	var args []string
	for _, name := range slices.Sorted(maps.Keys(f)) {
		for _, value := range f[name] {
			args = append(args, "--"+name+"="+value)
		}
	}
	return args
}

// write: write SECTION [NAME] puts a section of the script into the manifest directory.
func (s *Session) write(args []string) error {
	if len(args) == 0 || len(args) > 2 {
		return usage("write SECTION [NAME]")
	}
	s.Box().Write(args[len(args)-1], s.File(args[0]))
	return nil
}

// remove: remove NAME...
func (s *Session) remove(args []string) error {
	for _, name := range args {
		s.Box().Remove(name)
	}
	return nil
}

// control: box start|stop|kill|restart
func (s *Session) control(args []string) error {
	if len(args) != 1 {
		return usage("box start|stop|kill|restart")
	}
	switch args[0] {
	case "start":
		s.Box().Start()
	case "stop":
		s.Box().Stop()
	case "kill":
		s.Box().Kill()
	case "restart":
		s.Box().Stop()
		s.Box().Start()
	default:
		return usage("box start|stop|kill|restart")
	}
	return nil
}

// eventually: eventually COMMAND ARGS... tries a command until it succeeds.
func (s *Session) eventually(args []string) error {
	if len(args) == 0 {
		return usage("eventually COMMAND ARGS...")
	}
	command := s.mode.all()[args[0]]
	if command == nil {
		return fmt.Errorf("no command %q", args[0])
	}
	defer func() { s.try = 0 }()
	for s.try = 1; ; s.try++ {
		s.out.Reset()
		err := command(s, args[1:])
		if err == nil || !s.Box().Again(s.try) {
			return err
		}
	}
}

// nft: nft NAME... prints the named sets, maps and chains of the tables; without a name,
// all of them.
func (s *Session) nft(args []string) error {
	text, err := s.ruleset(args...)
	if err == nil {
		s.Printf("%s", text)
	}
	return err
}

func (s *Session) ruleset(names ...string) (string, error) {
	all, err := s.Box().Ruleset()
	if err != nil {
		return "", err
	}
	if len(names) > 0 {
		for family, table := range all {
			maps.DeleteFunc(table.Sets, func(name string, _ *nft.SetContent) bool { return !slices.Contains(names, name) })
			maps.DeleteFunc(table.Chains, func(name string, _ *nft.Chain) bool { return !slices.Contains(names, name) })
			table.Counters = nil
			if len(table.Sets)+len(table.Chains) == 0 {
				delete(all, family)
			}
		}
	}
	var b strings.Builder
	err = all.WriteText(&b)
	return b.String(), err
}

// transactions: transactions -> N compares how many nf_tables transactions the appliance
// made since the last look; without an expectation it only looks.
func (s *Session) transactions(args []string) error {
	n := s.Box().Transactions()
	if len(args) == 0 {
		return nil
	}
	_, want, err := arrow(args)
	if err == nil && strings.Join(want, " ") != strconv.Itoa(n) {
		err = fmt.Errorf("%d transactions, want %s", n, strings.Join(want, " "))
	}
	return err
}

// connect: connect HOST[@ADDRESS][:PORT] [NETWORK/]ADDRESS:PORT -> EXPECTATION
func (s *Session) connect(args []string) error { return s.ask(args, false) }

// ping: ping HOST ADDRESS -> EXPECTATION
func (s *Session) ping(args []string) error { return s.ask(args, true) }

func (s *Session) ask(args []string, ping bool) error {
	q, e, err := parseAsk(args, ping)
	if err != nil {
		return err
	}
	q.Try, q.Silent = s.try, q.Silent || s.neg
	if err := e.Check(s.Box().Outcomes(q, len(e.outcomes))); err != nil {
		return fmt.Errorf("%s: %w", q, err)
	}
	return nil
}

// ParseAsk reads the arguments of a command that connects: HOST ADDRESS:PORT -> EXPECTATION.
func ParseAsk(args []string) (Question, Expectation, error) { return parseAsk(args, false) }

func parseAsk(args []string, ping bool) (Question, Expectation, error) {
	before, after, err := arrow(args)
	if err != nil {
		return Question{}, Expectation{}, err
	}
	if len(before) != 2 {
		return Question{}, Expectation{}, usage("connect HOST[@ADDRESS][:PORT] [NETWORK/]ADDRESS:PORT -> EXPECTATION")
	}
	e, err := parseExpectation(after)
	if err != nil {
		return Question{}, e, err
	}
	q, err := parseQuestion(before[0], before[1], ping)
	q.Silent = e.silent()
	return q, e, err
}

// answers: as connect, but each server has to answer an equal share of many connections,
// ± 25 %.
func (s *Session) answers(args []string) error {
	q, e, err := parseAsk(args, false)
	if err != nil {
		return err
	}
	n := len(e.outcomes)
	q.Try = s.try
	got := s.Box().Ask(q, sample(n))
	if err := e.Check(got); err != nil {
		return fmt.Errorf("%s: %w", q, err)
	}
	counts := map[Outcome]int{}
	for _, o := range got {
		counts[o]++
	}
	fair := float64(len(got)) / float64(n)
	for o, count := range counts {
		if c := float64(count); c < 0.75*fair || c > 1.25*fair {
			return fmt.Errorf("%s: %s has %d of %d answers, want %.0f ± 25 %%", q, o, count, len(got), fair)
		}
	}
	return nil
}

// sample returns the number of answers that show that n servers have equal shares ± 25 %, with a
// chance of less than 1 in 10⁵ to miss by bad luck.
func sample(n int) int { return max(50, 400*(n-1)) }

// flush: flush removes every table of the box, as another program would.
func (s *Session) flush([]string) error { return s.fault(func() { s.Box().Flush() }) }

// empty: empty ip|ip6 SET removes the elements of a set or map, as another program would.
func (s *Session) empty(args []string) error {
	if len(args) != 2 || args[0] != "ip" && args[0] != "ip6" {
		return usage("empty ip|ip6 SET")
	}
	family := nft.IPv4
	if args[0] == "ip6" {
		family = nft.IPv6
	}
	return s.fault(func() { s.Box().Empty(family, args[1]) })
}

// fault records the ruleset for the command healed.
func (s *Session) fault(do func()) (err error) {
	if s.healthy, err = s.ruleset(); err == nil {
		do()
	}
	return err
}

// healed: healed waits until the ruleset is as it was before flush or empty.
func (s *Session) healed([]string) error {
	if s.healthy == "" {
		return errors.New("there was no fault before")
	}
	for attempt := 1; ; attempt++ {
		err := s.Box().Sync()
		var text string
		if err == nil {
			text, err = s.ruleset()
		}
		switch {
		case err == nil && text == s.healthy:
			return nil
		case s.Box().Again(attempt):
		case err != nil:
			return err
		default:
			return fmt.Errorf("the ruleset is\n%s\nbefore the fault it was\n%s", text, s.healthy)
		}
	}
}

// address: address add|del INTERFACE PREFIX
func (s *Session) address(args []string) error {
	if len(args) != 3 || args[0] != "add" && args[0] != "del" {
		return usage("address add|del INTERFACE PREFIX")
	}
	s.Box().Address(args[0] == "add", args[1], args[2])
	return nil
}

// patience bounds what a script waits for. Nothing that succeeds takes as long on a machine
// that has time; a busy one may need much of it.
const patience = 60 * time.Second
