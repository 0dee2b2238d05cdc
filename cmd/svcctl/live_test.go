package main

import (
	"context"
	"os"
	"strings"
	"testing"

	"svcctl.io/svcctl/cmd/svcctl/cli"
)

// TestEdit has an editor that changes the file, and what becomes of it.
func TestEdit(t *testing.T) {
	b := newBox(t)
	b.file("web.yaml", webYAML)
	if code := b.run("edit", "svc/web"); code != cli.ExitUsage || b.err.String() != "svcctl: edit opens vi, and stdin is no terminal: name another editor with EDITOR, or run `svcctl apply`\n" {
		t.Errorf("without a terminal: exit %d: %s", code, b.err.String())
	}
	b.env["EDITOR"] = "changed by the test"
	var heads []string
	edits := func(pairs ...string) {
		heads = nil
		b.Edit = func(_ context.Context, _, path string) error {
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			text := string(content)
			heads = append(heads, text[:strings.Index(text, "apiVersion")])
			if len(pairs) > 0 {
				text, pairs = strings.ReplaceAll(text, pairs[0], pairs[1]), pairs[2:]
			}
			return os.WriteFile(path, []byte(text), 0o600)
		}
	}
	if code := b.run("apply", "-f", "web.yaml"); code != cli.ExitDone {
		t.Fatal(b.err.String())
	}
	edits("port: 80\n", "port: 81\n")
	if code := b.run("edit", "svc/web"); code != cli.ExitDone || b.out.String() != "service/web edited\n" {
		t.Errorf("exit %d: %s%s", code, b.out.String(), b.err.String())
	}
	b.run("get", "svc/web", "-o", "jsonpath={.spec.ports[0].port}")
	if b.out.String() != "81" {
		t.Errorf("the port is %s", b.out.String())
	}
	edits()
	if code := b.run("edit", "svc/web"); code != cli.ExitDone || b.err.String() != "service/web is left as it is: nothing is changed\n" {
		t.Errorf("unchanged: exit %d: %s", code, b.err.String())
	}
	edits("port: 81\n", "port: 99999\n", "port: 99999\n", "port: 82\n")
	if code := b.run("edit", "svc/web"); code != cli.ExitDone || len(heads) != 2 || !strings.Contains(heads[1], "# It was refused:\n# * Service \"web\" is invalid") {
		t.Errorf("mended: exit %d: %s%q", code, b.err.String(), heads)
	}
	edits("name: web\n", "name: other\n", "name: other\n", "name: other\n")
	if code := b.run("edit", "svc/web"); code != cli.ExitNo || !strings.Contains(b.err.String(), "name and namespace may not be changed") {
		t.Errorf("renamed: exit %d: %s", code, b.err.String())
	}
	b.file("held.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: held, finalizers: [example.com/hold]}\n")
	b.run("apply", "-f", "held.yaml")
	b.run("delete", "cm", "held", "--wait=false")
	edits("  finalizers:\n  - example.com/hold\n", "")
	if code := b.run("edit", "cm/held"); code != cli.ExitDone || b.out.String() != "configmap/held edited, and removed: it was being deleted, and no finalizer keeps it any more\n" {
		t.Errorf("the last finalizer: exit %d: %s%s", code, b.out.String(), b.err.String())
	}
	if code := b.run("get", "cm/held"); code != cli.ExitNo {
		t.Errorf("it is still there: %s", b.out.String())
	}
	if code := b.run("edit", "svc/nope"); code != cli.ExitNo || b.err.String() != "svcctl: services \"nope\" not found\n" {
		t.Errorf("exit %d: %s", code, b.err.String())
	}
}

// TestWatch: what is there comes first, then changes, until it is interrupted.
func TestWatch(t *testing.T) {
	b := newBox(t)
	b.file("web.yaml", webYAML)
	if code := b.run("apply", "-f", "web.yaml"); code != cli.ExitDone {
		t.Fatal(b.err.String())
	}
	ctx, cancel := context.WithCancel(t.Context())
	out := &lineWriter{lines: make(chan string, 100)}
	watcher := newBench()
	watcher.env, watcher.Out = b.env, out
	done := make(chan int)
	go func() {
		done <- run(ctx, watcher.Env, []string{"get", "svc", "-w", "-o", "custom-columns=NAME:.metadata.name,PORT:.spec.ports[0].port"})
	}()
	for _, want := range []string{"NAME     PORT", "web   80"} {
		if got := <-out.lines; strings.Join(strings.Fields(got), " ") != strings.Join(strings.Fields(want), " ") {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	b.file("web.yaml", strings.ReplaceAll(webYAML, "port: 80\n", "port: 81\n"))
	b.run("apply", "-f", "web.yaml")
	got := <-out.lines
	for strings.HasSuffix(got, " 80") { // with other conditions
		got = <-out.lines
	}
	if !strings.HasPrefix(got, "web ") || !strings.HasSuffix(got, " 81") {
		t.Errorf("got %q", got)
	}
	cancel()
	if code := <-done; code != cli.ExitDone {
		t.Errorf("exit %d: %s", code, watcher.err.String())
	}
}

// lineWriter hands on lines.
type lineWriter struct {
	lines chan string
	rest  string
}

func (w *lineWriter) Write(p []byte) (int, error) {
	w.rest += string(p)
	for {
		line, rest, ok := strings.Cut(w.rest, "\n")
		if !ok {
			return len(p), nil
		}
		w.lines <- line
		w.rest = rest
	}
}

func TestCompleteNames(t *testing.T) {
	b := newBox(t)
	b.file("web.yaml", webYAML)
	b.run("apply", "-f", "web.yaml")
	b.session("complete",
		"__complete get end",
		"__complete get svc,ep",
		"__complete get svc w",
		"__complete get -n default svc ''",
		"__complete describe endpointslice/",
		"__complete get svc -n ''",
		"__complete get svc --namespace=d",
		"__complete get svc -o ''",
		"__complete plan ''",
		"__complete announce ''",
		"__complete fleet rollout ''",
		"__complete fleet --etcd x so",
		"__complete admin al",
		"__complete out ''",
		"__complete out svc/web ''",
		"__complete out svc/web 10.1.2.11 ''",
		"out svc/web 10.1.2.12",
		"__complete out svc/web ''",
		"__complete in svc/web 10",
		"__complete in svc/none ''",
		"__complete top --conn",
		"__complete dr",
	)
}
