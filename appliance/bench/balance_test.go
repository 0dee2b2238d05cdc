package bench

import (
	"fmt"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/netlab"
)

// BenchmarkBalance is the CPU of a flow's first packet for the ways to choose its endpoint: all
// Services are of one kind.
func BenchmarkBalance(b *testing.B) {
	for _, services := range []int{1_000, 10_000} {
		lab := netlab.New(b)
		var ways []*way
		for _, kind := range []struct{ name, annotation string }{
			{"at random", ""},
			{"by weight, no holes", "svcctl.io/weights: '%[1]s=2, %[2]s=2, %[3]s=2'"},
			{"by weight, 2 holes of 64", "svcctl.io/weights: '%[1]s=7, %[2]s=5'"},
			{"least-connection", "svcctl.io/balance: least-connection"},
			{"maglev", "svcctl.io/balance: maglev"},
			{"source-hash", "svcctl.io/balance: source-hash"},
			{"destination-hash", "svcctl.io/balance: destination-hash"},
			{"round-robin", "svcctl.io/balance: round-robin"},
		} {
			if kind.name == "round-robin" && services > 1_000 {
				continue // a map for each: the kernel takes 10 s to load 10,000
			}
			name := fmt.Sprintf("%s Services, %s", number(services), kind.name)
			ways = append(ways, balanced(b, lab, name, func(d netlab.Dir) {
				writeAnnotated(d, services, kind.annotation)
			}, standbys(services)...))
		}
		inTurns(b, "New connection, by algorithm: CPU of the first packet", "the first", ways)
	}
}

// writeAnnotated is writeServices with an annotation, in which %[N]s is the N-th endpoint.
func writeAnnotated(d netlab.Dir, services int, annotation string) {
	for first := 0; first < services; first += perFile {
		var docs []string
		for i := first; i < min(first+perFile, services); i++ {
			doc := standby(i)
			if annotation != "" {
				text := annotation
				if strings.Contains(text, "%") {
					text = fmt.Sprintf(annotation, endpointAddr(i, 0), endpointAddr(i, 1), endpointAddr(i, 2))
				}
				doc = strings.Replace(doc, "metadata:\n", "metadata:\n  annotations:\n    "+text+"\n", 1)
			}
			docs = append(docs, doc)
		}
		d.Write(fmt.Sprintf("annotated-%05d.yaml", first), strings.Join(docs, "---\n"))
	}
}
