package bench

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
)

// asked are what people ask for, most of it about one of many Services.
var asked = []string{
	"status", "top -A --once", "doctor", "explain {vip}:80", "explain {endpoint}", "explain :30080", "explain svc/s00009", "describe svc s00009",
	"get svc s00009", "get svc -A", "health", "journal", "top --connections -A", "admin alloc", "plan --against running -f {file}",
}

// BenchmarkVerbs measures verbs, and pages of the dashboard, at numbers of Services: the time until the answer is there, the CPU
// time and memory of the client, and the CPU time of the appliance meanwhile.
func BenchmarkVerbs(b *testing.B) {
	for _, services := range populations {
		x := newBox(b, netlab.New(b), services)
		section := "Somebody asks, " + number(services) + " Services"
		x.Start()
		x.settle(b)
		at := strings.NewReplacer("{vip}", serviceAddr(9).String(), "{endpoint}", endpointAddr(9, 0).String(), "{file}", filepath.Join(x.Manifests.Path, "many00000.yaml"))
		for _, line := range asked {
			before, began := x.cpu(b), time.Now()
			cmd := exec.Command(*program, append(strings.Fields(at.Replace(line)), "--socket", x.Socket)...)
			if err := x.host.Do(cmd.Start); err != nil {
				b.Fatal(err)
			}
			_ = cmd.Wait() // an exit status is an answer
			took := time.Since(began)
			used, _ := cmd.ProcessState.SysUsage().(*syscall.Rusage)
			results.add(section, "svcctl "+line, ms(took), fmt.Sprintf("CPU %s, %d MiB; of the appliance %s",
				ms(cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime()), used.Maxrss/1024, ms(x.cpu(b)-before)))
		}
		for _, page := range []string{"", "services", "addresses", "connections", "services/default/s00009"} {
			before, began := x.cpu(b), time.Now()
			size := len(x.get(b, "/dashboard/"+page))
			results.add(section, "/dashboard/"+page, ms(time.Since(began)), fmt.Sprintf("%d KB; CPU of the appliance %s", size/1000, ms(x.cpu(b)-before)))
		}
		x.Stop()
	}
}
