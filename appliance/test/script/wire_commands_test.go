package script_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
	"svcctl.io/svcctl/appliance/test/script"
)

// svcctl: svcctl VERB ARGS... runs the program against the appliance. Names of sections of
// the script become paths.
func svcctl(s *script.Session, args []string) error {
	w := s.Box().(*wire)
	for i, arg := range args {
		if _, err := os.Stat(s.Path(arg)); err == nil && !strings.HasPrefix(arg, "-") {
			args[i] = s.Path(arg)
		}
	}
	stdout, stderr, code := "", "", 0
	if offline := []string{"plan", "version"}; slices.Contains(offline, args[0]) {
		out, errOut, err := w.GW1.Run(binary, args...)
		if stdout, stderr = out, errOut; err != nil {
			code = 1
		}
	} else {
		stdout, stderr, code = w.svcctl.Svcctl(args[0], args[1:]...)
	}
	// Paths are of this run alone.
	stdout = strings.ReplaceAll(stdout, w.svcctl.Manifests.Path+"/", "")
	s.Printf("%s", stdout)
	if code != 0 {
		s.Printf("%s", stderr)
		return fmt.Errorf("exit code %d: %s%s", code, stdout, stderr)
	}
	return nil
}

// shows: shows REGEXP VERB ARGS... is svcctl VERB ARGS..., whose output matches, whatever it exits with.
func shows(s *script.Session, args []string) error {
	if len(args) < 2 {
		return errors.New("usage: shows REGEXP VERB ARGS...")
	}
	want, err := regexp.Compile(args[0])
	if err != nil {
		return err
	}
	stdout, _, _ := s.Box().(*wire).svcctl.Svcctl(args[1], args[2:]...)
	if s.Printf("%s", stdout); !want.MatchString(stdout) {
		return fmt.Errorf("no match for %s in:\n%s", want, stdout)
	}
	return nil
}

// conntrack: conntrack ARGS... -> N compares how many entries `conntrack -L ARGS...` lists.
func conntrack(s *script.Session, args []string) error {
	i := slices.Index(args, "->")
	if i < 0 || i != len(args)-2 {
		return errors.New("usage: conntrack ARGS... -> N")
	}
	want, err := strconv.Atoi(args[i+1])
	if err != nil {
		return err
	}
	text := strings.TrimSpace(s.Box().(*wire).GW1.Conntrack(append([]string{"-L"}, args[:i]...)...))
	n := 0
	if text != "" {
		n = strings.Count(text, "\n") + 1
	}
	if n != want {
		return fmt.Errorf("%d entries, want %d:\n%s", n, want, text)
	}
	return nil
}

// dial: dial NAME HOST ADDRESS:PORT -> EXPECTATION keeps a TCP connection open.
func dial(s *script.Session, args []string) error {
	if len(args) < 4 {
		return errors.New("usage: dial NAME HOST ADDRESS:PORT -> EXPECTATION")
	}
	q, e, err := script.ParseAsk(args[1:])
	if err != nil {
		return err
	}
	w := s.Box().(*wire)
	conn, err := w.host(q.From).Dial(q.To, options(q, 0)...)
	var reply netlab.Reply
	if err == nil {
		reply, w.open[args[0]] = conn.Reply, conn
	}
	return e.Check([]script.Outcome{outcome(q, reply, err)})
}

// echo: echo NAME -> ok|reset|timeout sends a line over an open connection.
func echo(s *script.Session, args []string) error {
	conn := s.Box().(*wire).open[args[0]]
	if conn == nil || len(args) != 3 || args[1] != "->" {
		return errors.New("usage: echo NAME -> ok|reset|timeout, after dial")
	}
	wait := patient
	switch {
	case args[2] == "timeout":
		wait = netlab.Within(2 * time.Second) // real time: silence
	case s.Try() > 0:
		wait = netlab.Within(5 * time.Second) // real time: a client that waits for an answer is not reset until it sends again
	}
	got := "ok"
	if err := conn.Echo("hello", wait); err != nil {
		got = map[netlab.Refusal]string{netlab.Reset: "reset", netlab.Timeout: "timeout"}[netlab.RefusalOf(err)]
		if got == "" {
			got = err.Error()
		}
	}
	if got != args[2] {
		return fmt.Errorf("%s, want %s", got, args[2])
	}
	return nil
}

// dns: dns HOST SERVER NAME TYPE -> STATUS [DATA, ...] asks with dig; answers are sorted.
func dns(s *script.Session, args []string) error {
	if len(args) < 6 || args[4] != "->" {
		return errors.New("usage: dns HOST SERVER NAME TYPE -> STATUS [DATA, ...]")
	}
	out, _, err := s.Box().(*wire).host(args[0]).Run("dig", "-r", "+time=10", "+tries=3", "+noall", "+comments", "+answer", "@"+args[1], args[2], args[3])
	if err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	status := ""
	var data []string
	for line := range strings.Lines(out) {
		if _, after, found := strings.Cut(line, "status: "); found {
			status, _, _ = strings.Cut(after, ",")
		}
		if fields := strings.Fields(line); len(fields) > 4 && !strings.HasPrefix(line, ";") {
			data = append(data, strings.Join(fields[4:], " "))
		}
	}
	slices.Sort(data)
	got, want := strings.TrimSpace(status+" "+strings.Join(data, ", ")), strings.Join(args[5:], " ")
	if got != want {
		return fmt.Errorf("got %s, want %s\n%s", got, want, out)
	}
	return nil
}

// httpGet: http HOST ADDRESS:PORT PATH -> CODE prints the body.
func httpGet(s *script.Session, args []string) error {
	if len(args) != 5 || args[3] != "->" {
		return errors.New("usage: http HOST ADDRESS:PORT PATH -> CODE")
	}
	to, err := netip.ParseAddrPort(args[1])
	if err != nil {
		return err
	}
	answer, err := s.Box().(*wire).host(args[0]).Get(to, args[2])
	if err != nil {
		return err
	}
	s.Printf("%s\n", answer.Body)
	if strconv.Itoa(answer.Status) != args[4] {
		return fmt.Errorf("status %d, want %s: %s", answer.Status, args[4], answer.Body)
	}
	return nil
}

// on: on HOST PROGRAM ARGS... runs a program on a host.
func on(s *script.Session, args []string) error {
	if len(args) < 2 {
		return errors.New("usage: on HOST PROGRAM ARGS...")
	}
	stdout, _, err := s.Box().(*wire).host(args[0]).Run(args[1], args[2:]...)
	s.Printf("%s", stdout)
	return err
}

// serve: serve HOST tcp|udp ADDRESS:PORT has a program listen there.
func serve(s *script.Session, args []string) error {
	if len(args) != 3 {
		return errors.New("usage: serve HOST tcp|udp ADDRESS:PORT")
	}
	at, err := netip.ParseAddrPort(args[2])
	if err == nil {
		s.Box().(*wire).host(args[0]).ServeAt(args[1], at)
	}
	return err
}

// mangle: mangle SECTION NAME overwrites a manifest in place, as a careless program does.
func mangle(s *script.Session, args []string) error {
	if len(args) != 2 {
		return errors.New("usage: mangle SECTION NAME")
	}
	s.Box().(*wire).svcctl.Manifests.WriteInPlace(filepath.Base(args[1]), s.File(args[0]))
	return nil
}
