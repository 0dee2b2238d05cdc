package main

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/cmd/svcctl/cli"
)

// tenThousand is a file of as many Services.
func tenThousand() string {
	var b strings.Builder
	for i := range 10_000 {
		fmt.Fprintf(&b, "---\napiVersion: v1\nkind: Service\nmetadata:\n  name: s%d\n  labels: {app: many}\nspec:\n  ports:\n  - {name: http, port: 80, targetPort: 8080}\n", i)
	}
	return b.String()
}

// BenchmarkApply applies 10,000 Services from one file, through the real API into a store
// in memory: new ones, then the same again, then lists them.
func BenchmarkApply(b *testing.B) {
	for range b.N {
		b.StopTimer()
		box := newBox(b)
		box.Out = io.Discard
		box.file("many.yaml", tenThousand())
		b.StartTimer()
		for _, step := range []struct {
			what string
			args []string
		}{
			{"new", []string{"apply", "-f", "many.yaml"}},
			{"again", []string{"apply", "-f", "many.yaml"}},
			{"table", []string{"get", "svc"}},
			{"yaml", []string{"get", "svc", "-o", "yaml"}},
		} {
			began := time.Now()
			if code := box.run(step.args...); code != cli.ExitDone {
				b.Fatal(box.err.String())
			}
			b.ReportMetric(time.Since(began).Seconds(), "s/"+step.what)
		}
	}
}
