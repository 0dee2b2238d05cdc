package main

import (
	"context"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/cli"
)

// completer writes a program svcctl into a directory that answers for __complete as ours does, and returns the directory, to
// be the first of PATH.
func completer(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("runs shells, and the program for each line")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	script := "#!/bin/sh\nSVCCTL_SOCKET=" + completionServer(t) + " SVCCTL_TEST_COMPLETES=1 exec " + self + " \"$@\"\n"
	if err := os.WriteFile(filepath.Join(dir, "svcctl"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// completionServer is an appliance with a Service, of which one endpoint is taken out. It returns its socket.
func completionServer(t *testing.T) string {
	t.Helper()
	mux := http.NewServeMux()
	answer := func(path, text string) {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, text)
		})
	}
	const service = `{"apiVersion":"v1","kind":"Service","metadata":{"namespace":"default","name":"shop","annotations":{"svcctl.io/out":"10.1.2.13"}}}`
	answer("/api/v1/namespaces/default/services", `{"kind":"ServiceList","apiVersion":"v1","metadata":{},"items":[`+service+`]}`)
	answer("/api/v1/namespaces/default/services/shop", service)
	answer("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", `{"kind":"EndpointSliceList","apiVersion":"discovery.k8s.io/v1","metadata":{},"items":[
		{"metadata":{"name":"shop-1"},"addressType":"IPv4","endpoints":[{"addresses":["10.1.2.11"]},{"addresses":["10.1.2.12"]},{"addresses":["10.1.2.13"]}]}]}`)
	answer(wire.GetTraffic.Path, `{"ports":[{"namespace":"default","service":"shop","port":"http","protocol":"TCP","frontends":["192.0.2.10:80","[2001:db8::10]:80",":30080"],
		"endpoints":[{"endpoint":"10.1.2.11:8080"},{"endpoint":"10.1.2.12:8080"}]}]}`)
	socket := filepath.Join(t.TempDir(), "s")
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: mux}
	go func() { _ = server.Serve(ln) }()
	t.Cleanup(func() { _ = server.Close() })
	return socket
}

// TestMain is svcctl itself where completer asks for it.
func TestMain(m *testing.M) {
	if os.Getenv("SVCCTL_TEST_COMPLETES") != "" {
		b := newBench()
		b.Env.Out, b.Env.LookupEnv = os.Stdout, os.LookupEnv
		os.Exit(run(context.Background(), b.Env, os.Args[1:]))
	}
	debug.SetGCPercent(400) // each command line makes all verbs: collecting them takes as long
	os.Exit(m.Run())
}

// completion is what a shell makes of a command line.
type completion struct{ line, want string }

// completions are those of each shell.
var completions = []completion{
	{"svcctl s", "status serve"},
	{"svcctl announce ", "drain status undrain"},
	{"svcctl fleet roll", "rollout"},
	{"svcctl fleet rollout ", "pause resume status undo"},
	{"svcctl admin e", "env export"},
	{"svcctl serve --node", "--node-name --node-port-space --nodeless-endpoints --nodeport-addresses"},
	{"svcctl serve --snat ", "auto never"},
	{"svcctl serve --vip-ping al", "always"},
	{"svcctl status -o ", "json table wide yaml"},
	{"svcctl wait --for r", "ready"},
	{"svcctl completion ", "bash fish zsh"},
	{"svcctl help pl", "plan"},
	{"svcctl help announce dr", "drain"},
	{"svcctl serve --zone ", ""},
	{"svcctl down --y", "--yes"},
	{"svcctl get --na", "--namespace"},
	{"svcctl get -o y", "yaml"},
	{"svcctl apply --dry", "--dry-run"},
	{"svcctl get endpointsl", "endpointslices"},
	{"svcctl plan -f testdata/he", "testdata/help"},
	{"svcctl validate testdata/he", "testdata/help"},
	{"svcctl dr", ""}, // an earlier spelling
	{"svcctl out svc/sh", "svc/shop"},
	{"svcctl out svc/shop ", "10.1.2.11 10.1.2.12"},
	{"svcctl out svc/shop 10.1.2.11 ", "10.1.2.12"},
	{"svcctl in svc/shop ", "10.1.2.13"},
	{"svcctl journal svc/", "svc/shop"},
	{"svcctl explain 192", "192.0.2.10:80"},
	{"svcctl trace 203.0.113.7 192.0.2.", "192.0.2.10:80"},
	{"svcctl top --connections --endpoint 10.1.2.1", "10.1.2.11:8080 10.1.2.12:8080"},
}

// completed sorts what a shell has made of a line, and compares it.
func completed(t *testing.T, line, got, want string) {
	t.Helper()
	words := strings.Fields(got)
	for i := range words {
		words[i] = strings.TrimSuffix(words[i], "/") // of a directory
	}
	slices.Sort(words)
	wanted := strings.Fields(want)
	slices.Sort(wanted)
	if !slices.Equal(slices.Compact(words), wanted) {
		t.Errorf("%q completes to %q, want %q", line, words, wanted)
	}
}

// TestCompletionBash lets a bash complete command lines.
func TestCompletionBash(t *testing.T) {
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("no bash here")
	}
	b := newBench()
	if code := b.run("completion", "bash"); code != cli.ExitDone {
		t.Fatal(b.err.String())
	}
	path := completer(t) + ":" + os.Getenv("PATH")
	const driver = `
for line; do COMP_LINE=$line; COMP_POINT=${#line}; COMPREPLY=(); _svcctl; printf '%s\n' "${COMPREPLY[@]}"; echo ---; done`
	completedBy(t, path, []string{"bash", "-c", b.out.String() + driver, "bash"}, append(slices.Clone(completions),
		completion{"svcctl wait --for=r", "ready"},
		completion{"svcctl wait --for=", "condition= create delete jsonpath= ready synced"}))
}

// completedBy has one shell complete all lines, which it gets as arguments: it prints the words for each, and a line "---".
func completedBy(t *testing.T, path string, command []string, lines []completion) {
	t.Helper()
	for _, c := range lines {
		command = append(command, c.line)
	}
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir(), "PATH="+path) // without anybody's settings
	out, err := cmd.CombinedOutput()
	answers := strings.Split(string(out), "---\n")
	if err != nil || len(answers) != len(lines)+1 {
		t.Fatalf("%v: %d answers for %d lines\n%s", err, len(answers)-1, len(lines), out)
	}
	for i, c := range lines {
		var got []string
		for line := range strings.Lines(answers[i]) {
			word, _, _ := strings.Cut(strings.TrimSpace(line), "\t") // without the description of fish
			got = append(got, word)
		}
		completed(t, c.line, strings.Join(got, " "), c.want)
	}
}

// Readline parts words at colons: of an IPv6 address only what follows the last one is a word of its own.
func TestCompletionBashColons(t *testing.T) {
	b := newBench()
	if code := b.run("completion", "bash"); code != cli.ExitDone {
		t.Fatal(b.err.String())
	}
	cmd := exec.Command("bash", "-c", b.out.String()+`
svcctl() { echo 2001:db8::11; echo 2001:db8::12; }
COMP_LINE="svcctl out svc/web 2001:db8::1"; COMP_POINT=${#COMP_LINE}; _svcctl; printf '%s\n' "${COMPREPLY[@]}"`)
	out, err := cmd.CombinedOutput()
	if err != nil || string(out) != "11\n12\n" {
		t.Errorf("%v: %s", err, out)
	}
}

// TestCompletionFish lets a fish complete command lines.
func TestCompletionFish(t *testing.T) {
	if _, err := exec.LookPath("fish"); err != nil {
		t.Skip("no fish here")
	}
	b := newBench()
	if code := b.run("completion", "fish"); code != cli.ExitDone {
		t.Fatal(b.err.String())
	}
	path := completer(t) + ":" + os.Getenv("PATH")
	const driver = "\nfor line in $argv; complete -C $line; echo ---; end"
	completedBy(t, path, []string{"fish", "-c", b.out.String() + driver}, append(slices.Clone(completions),
		completion{"svcctl wait --for=r", "--for=ready"},
		completion{"svcctl apply --dry-run=s", "--dry-run=server"}))
}

// zshSetup has an interactive zsh write what it would complete to $OUT, and DONE after control-X control-X.
const zshSetup = `
autoload -Uz compinit; compinit -u -D
. $SCRIPT
compadd() {
	if [[ ${@[1,(i)(-|--)]} == *-(O|A|D)\ * ]]; then builtin compadd "$@"; return; fi
	local -a _hits
	builtin compadd -A _hits "$@"
	print -l -- $_hits >>$OUT
	builtin compadd "$@"
}
over() { print DONE >>$OUT }
zle -N over
bindkey '^X^X' over
bindkey '^I' complete-word
setopt no_auto_list no_auto_menu no_beep
print DONE >>$OUT
`

// zshDriver types lines into that shell, and prints the words that each is completed by.
const zshDriver = `
zmodload zsh/zpty
settled() { until [[ -f $OUT && "$(<$OUT)" == *DONE* ]]; do zpty -r -t z ignored; sleep 0.05; done }
zpty z zsh -f -i
zpty -w z ". $SETUP"
settled
for line in "$@"; do
	rm -f $OUT
	zpty -w -n z $'\x15'"$line"$'\t\x18\x18'
	settled
	print -r -- "$line=$(grep -vx DONE $OUT | tr '\n' ' ')"
done
zpty -d z
`

// TestCompletionZsh lets an interactive zsh complete command lines.
func TestCompletionZsh(t *testing.T) {
	zsh, err := exec.LookPath("zsh")
	if err != nil {
		t.Skip("no zsh here")
	}
	b := newBench()
	if code := b.run("completion", "zsh"); code != cli.ExitDone {
		t.Fatal(b.err.String())
	}
	dir := t.TempDir()
	files := map[string]string{"SCRIPT": b.out.String(), "SETUP": zshSetup}
	env := append(os.Environ(), "HOME="+dir, "ZDOTDIR="+dir, "TERM=dumb", "OUT="+filepath.Join(dir, "out"), "PATH="+completer(t)+":"+os.Getenv("PATH"))
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		env = append(env, name+"="+path)
	}
	want := map[string]string{"svcctl serve --snat=": "auto never", "svcctl wait --for=r": "ready"}
	for _, tt := range completions {
		if !strings.Contains(tt.line, "testdata") { // zsh writes file names in parts
			want[tt.line] = tt.want
		}
	}
	lines := slices.Sorted(maps.Keys(want))
	cmd := exec.Command(zsh, append([]string{"-f", "-c", zshDriver, "zsh"}, lines...)...)
	cmd.Env, cmd.Dir = env, dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		i := strings.LastIndex(strings.TrimSuffix(line, "\n"), "=")
		if typed := line[:i]; want[typed] != "" || slices.Contains(lines, typed) {
			completed(t, typed, line[i+1:], want[typed])
			delete(want, typed)
		}
	}
	if len(want) > 0 || t.Failed() {
		t.Errorf("without an answer: %v\n%s", want, out)
	}
}

// TestCompletionSyntax lets the shells that are here read their scripts.
func TestCompletionSyntax(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		b := newBench()
		if code := b.run("completion", shell); code != cli.ExitDone {
			t.Fatal(b.err.String())
		}
		if _, err := exec.LookPath(shell); err != nil {
			t.Logf("no %s here: its script is not read", shell)
			continue
		}
		cmd := exec.Command(shell, "-n", "/dev/stdin")
		cmd.Stdin = strings.NewReader(b.out.String())
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s -n: %v\n%s", shell, err, out)
		}
	}
}
