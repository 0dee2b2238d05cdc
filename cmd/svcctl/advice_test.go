package main

import (
	"regexp"
	"strings"
	"testing"

	conditions "svcctl.io/svcctl/appliance/verdict"
	"svcctl.io/svcctl/cmd/svcctl/cli"
)

// TestNextStepsAreCommands: every command that a condition names as the next step is one: its verb, words and flags exist,
// and nothing that it needs is missing.
func TestNextStepsAreCommands(t *testing.T) {
	command := regexp.MustCompile(`svcctl((?: (?:-{0,2}[A-Za-z./…]+))+)`)
	// The first word of a sentence that goes on behind the command.
	ends := regexp.MustCompile(` (lists|takes|checks|confirms|and|enable|restart)\b.*`)
	b, ran := newBench(), 0
	for i := range conditions.Table() {
		r := &conditions.Table()[i]
		for _, text := range []string{r.Next, r.Plain} {
			text = regexp.MustCompile("[`:;,]").ReplaceAllString(strings.ReplaceAll(text, "/etc/svcctl/svcctl.yaml", "FILE"), "\n")
			for _, match := range command.FindAllStringSubmatch(text, -1) {
				words := strings.NewReplacer("KEY", "svcctl.io/balance", "…", "web", "NS", "default", "KIND", "svc", "OBJECT", "svc/web").Replace(ends.ReplaceAllString(match[1], ""))
				args := strings.Fields(words)
				if len(args) == 0 || strings.HasPrefix(match[0], "svcctl-") || args[0] == "announce" || args[0] == "discover" { // which would begin
					continue
				}
				ran++
				if code := b.run(args...); code == cli.ExitUsage && !strings.Contains(b.err.String(), "which fleet?") {
					t.Errorf("%s: svcctl %s: %s", r.Reason, strings.Join(args, " "), b.err.String())
				}
			}
		}
	}
	if ran < 60 {
		t.Errorf("only %d commands", ran)
	}
}
