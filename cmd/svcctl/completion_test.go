package main

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/cmd/svcctl/output"
)

// TestCompletionBash lets a bash complete command lines.
func TestCompletionBash(t *testing.T) {
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("no bash here")
	}
	b := newBench()
	if code := b.run("completion", "bash"); code != exitDone {
		t.Fatal(b.err.String())
	}
	script := b.out.String()
	for _, tt := range []struct{ line, want string }{
		{"svcctl s", "schema serve source status"},
		{"svcctl serve --node", "--node-name --node-port-space --nodeless-endpoints --nodeport-addresses"},
		{"svcctl serve --snat ", "auto never"},
		{"svcctl serve --vip-ping al", "always"},
		{"svcctl status -o ", "table wide json yaml"},
		{"svcctl wait --for r", "ready"},
		{"svcctl wait --for = r", "ready"}, // to bash, --for=r is three words
		{"svcctl wait --for =", "condition= create delete jsonpath= ready synced"},
		{"svcctl completion ", "--help bash fish zsh"},
		{"svcctl help pl", "plan"},
		{"svcctl plan -f testdata/he", "testdata/help"},
		{"svcctl serve --zone ", ""},
		{"svcctl down --y", "--yes"},
		// What the appliance knows is asked with the words so far.
		{"svcctl get svc w", "web"},
		{"svcctl get svc -n ", "asked:get,svc,-n, web api"},
		{"svcctl get --na", "--namespace"},
		{"svcctl get -o y", "yaml"},
		{"svcctl status -o y", "yaml"},
		{"svcctl apply -f testdata/he", "testdata/help"},
		{"svcctl apply --dry", "--dry-run"},
	} {
		words := strings.Split(tt.line, " ")
		cmd := exec.Command("bash", "-c", script+`
svcctl() { shift; local IFS=,; printf '%s\n' "asked:$*" web api; }
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _svcctl; printf '%s\n' "${COMPREPLY[@]}"`, "bash")
		cmd.Args = append(cmd.Args, words...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", tt.line, err, out)
		}
		got, want := strings.Fields(string(out)), strings.Fields(tt.want)
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%q completes to %q, want %q", tt.line, got, want)
		}
	}
}

// TestCompletionFish lets a fish complete command lines.
func TestCompletionFish(t *testing.T) {
	if _, err := exec.LookPath("fish"); err != nil {
		t.Skip("no fish here")
	}
	b := newBench()
	if code := b.run("completion", "fish"); code != exitDone {
		t.Fatal(b.err.String())
	}
	for line, want := range map[string]string{
		"svcctl get s":             "asked:get,s web",
		"svcctl get svc -n ":       "asked:get,svc,-n, web",
		"svcctl serve --snat ":     "auto never",
		"svcctl apply --dry-run=s": "--dry-run=server",
		"svcctl wait --for=r":      "--for=ready",
		"svcctl help pl":           "plan",
	} {
		// What is asked comes in one word, of which fish shows what begins with the last one.
		script := b.out.String() + `
function svcctl; set -l words $argv[2..-1]; printf '%s\n' $argv[-1]"asked:"(string join , -- $words) $argv[-1]web; end
complete -C ` + shellQuote(line)
		cmd := exec.Command("fish", "-c", script)
		cmd.Env = append(os.Environ(), "HOME="+t.TempDir()) // without anybody's settings
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", line, err, out)
		}
		var got []string
		for line := range strings.Lines(string(out)) {
			word, _, _ := strings.Cut(strings.TrimSpace(line), "\t")
			got = append(got, strings.TrimPrefix(word, "s"))
		}
		slices.Sort(got)
		if wanted := strings.Fields(want); !slices.Equal(got, wanted) {
			t.Errorf("%q completes to %q, want %q", line, got, wanted)
		}
	}
}

// zshSetup has an interactive zsh write what it would complete to $OUT, and DONE after control-X control-X.
const zshSetup = `
autoload -Uz compinit; compinit -u -D
. $SCRIPT
svcctl() { [[ $1 == __complete ]] && print -l "asked:${(j:,:)@[2,-1]}" web api }
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
	if code := b.run("completion", "zsh"); code != exitDone {
		t.Fatal(b.err.String())
	}
	dir := t.TempDir()
	files := map[string]string{"SCRIPT": b.out.String(), "SETUP": zshSetup}
	env := append(os.Environ(), "HOME="+dir, "ZDOTDIR="+dir, "TERM=dumb", "OUT="+filepath.Join(dir, "out"))
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		env = append(env, name+"="+path)
	}
	want := map[string]string{
		"svcctl rol":           "rollback rollout",
		"svcctl get w":         "web",
		"svcctl get -n ":       "api asked:get,-n, web",
		"svcctl serve --snat=": "auto never",
		"svcctl serve --node":  "--node-name --node-port-space --nodeless-endpoints --nodeport-addresses",
		"svcctl wait --for=r":  "ready",
		"svcctl help pl":       "plan",
		"svcctl completion ":   "bash fish zsh",
	}
	lines := slices.Sorted(maps.Keys(want))
	cmd := exec.Command(zsh, append([]string{"-f", "-c", zshDriver, "zsh"}, lines...)...)
	cmd.Env, cmd.Dir = env, dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	got := map[string]string{}
	for line := range strings.Lines(string(out)) {
		i := strings.LastIndex(strings.TrimSuffix(line, "\n"), "=")
		words := strings.Fields(line[i+1:])
		slices.Sort(words)
		got[line[:i]] = strings.Join(slices.Compact(words), " ")
	}
	for _, line := range lines {
		if got[line] != want[line] {
			t.Errorf("%q completes to %q, want %q", line, got[line], want[line])
		}
	}
	if t.Failed() {
		t.Logf("%s", out)
	}
}

// TestCompletionSyntax lets the shells that are here read their scripts, and looks
// for every verb and flag in each.
func TestCompletionSyntax(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		b := newBench()
		if code := b.run("completion", shell); code != exitDone {
			t.Fatal(b.err.String())
		}
		script := b.out.String()
		for _, v := range b.verbs() {
			if !strings.Contains(script, v.name) {
				t.Errorf("%s: no verb %s", shell, v.name)
			}
			for _, o := range v.options {
				if !strings.Contains(script, "-"+o.name) && !strings.Contains(script, "-l "+o.name) {
					t.Errorf("%s: no flag --%s", shell, o.name)
				}
			}
		}
		if _, err := exec.LookPath(shell); err != nil {
			t.Logf("no %s here: its script is not read", shell)
			continue
		}
		cmd := exec.Command(shell, "-n", "/dev/stdin")
		cmd.Stdin = strings.NewReader(script)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s -n: %v\n%s", shell, err, out)
		}
	}
}

func TestNearest(t *testing.T) {
	words := []string{"manifests", "dataDir", "serviceClusterIPRange", "snat", "zone"}
	for word, want := range map[string]string{
		"manifest": "manifests", "data-dir": "dataDir", "service_cluster_ip_range": "serviceClusterIPRange",
		"zoen": "zone", "zon": "zone", "mainfests": "manifests", "listen": "", "": "", "frobnicate": "",
	} {
		if got := output.Nearest(word, words); got != want {
			t.Errorf("output.Nearest(%q) is %q, want %q", word, got, want)
		}
	}
}
