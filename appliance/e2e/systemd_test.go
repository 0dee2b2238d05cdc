package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// datagrams listens at a socket of a name, in a directory of its own, and gives what has come so far.
func datagrams(t *testing.T, name string) (dir string, come func() string) {
	t.Helper()
	dir = t.TempDir()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, name), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(dir, name), 0o777); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var all strings.Builder
	go func() {
		for b := make([]byte, 1<<20); ; {
			n, err := conn.Read(b)
			if err != nil {
				return
			}
			mu.Lock()
			all.Write(b[:n])
			all.WriteString("\n--\n")
			mu.Unlock()
		}
	}()
	t.Cleanup(func() { _ = conn.Close() })
	return dir, func() string {
		mu.Lock()
		defer mu.Unlock()
		return all.String()
	}
}

// hasCome waits until a datagram has all the texts.
func hasCome(t *testing.T, come func() string, texts ...string) {
	t.Helper()
	eventually(t, time.Minute, func() error {
		all := come()
	search:
		for datagram := range strings.SplitSeq(all, "\n--\n") {
			for _, text := range texts {
				if !strings.Contains(datagram, text) {
					continue search
				}
			}
			return nil
		}
		return fmt.Errorf("no datagram has %q:\n%s", texts, all)
	})
}

func Test343_journal_of_systemd(t *testing.T) {
	b := newBox(t, flags{"connection-log": {"journal"}})
	dir, come := datagrams(t, "socket")
	// A journal of its own, and stderr as a stream of it.
	b.svcctl.Wrapper = []string{"unshare", "--mount", "sh", "-ec",
		`mount -t tmpfs none /run; mkdir -p /run/systemd/journal; mount --bind "$0" /run/systemd/journal
		export JOURNAL_STREAM=$(stat -L -c %d:%i /dev/fd/2); exec "$@"`, dir}
	b.write("web.yaml", func(f family) []string {
		return []string{
			annotated(f.service("web", "clusterIP: "+f.vip(41), "ports: [{name: p80, port: 80}]"), "svcctl.io/connection-log", "true"),
			f.slice("web", "p80: 80", b.L1),
			annotated(f.service("odd", "clusterIP: "+f.vip(42), "ports: [{name: p80, port: 80}]"), "svcctl.io/connection-log", "perhaps"),
		}
	})
	b.launched(t)
	for _, f := range families {
		hasCome(t, come, "PRIORITY=3\n", "SVCCTL_SERVICE=default/"+f.name("odd")+"\n", "SVCCTL_FILE=", "web.yaml", "SYSLOG_IDENTIFIER=svcctl\n")
		b.ask(t, 1, b.IN, "tcp", f.at(f.vip(41), 80))
		b.GW1.Conntrack("-D", "-f", f.pick("ipv4", "ipv6"))
		hasCome(t, come, "SYSLOG_IDENTIFIER=svcctl-connections\n", "SVCCTL_SERVICE=default/"+f.name("web")+"\n",
			"SVCCTL_ENDPOINT="+f.on(80, b.L1)[0].String()+"\n", `"to":"`+f.at(f.vip(41), 80).String()+`"`)
	}
	hasCome(t, come, "PRIORITY=6\n", "MESSAGE=programmed services=2", "SVCCTL_SERVICES=2\n")
}

func Test344_status_line_of_systemd(t *testing.T) {
	b := newBox(t, nil)
	dir, come := datagrams(t, "notify")
	b.svcctl.Wrapper = []string{"env", "NOTIFY_SOCKET=" + filepath.Join(dir, "notify")}
	b.write("web.yaml", b.webDocuments(b.L1))
	b.svcctl.Start()
	hasCome(t, come, "STATUS=2 Services, 2 endpoints, all in the kernel; no problems")
	b.svcctl.Manifests.Write("broken.yaml", "kind: Service\nmetadata: [")
	hasCome(t, come, "all in the kernel; 1 error, 0 warnings, see svcctl status")
	b.svcctl.Manifests.Write("broken.yaml", "")
	eventually(t, time.Minute, func() error {
		all := strings.Split(strings.TrimSpace(come()), "\n--\n")
		last := strings.TrimSuffix(all[len(all)-1], "\n--")
		if !strings.Contains(last, "no problems") {
			return fmt.Errorf("the last line is %q", last)
		}
		return nil
	})
	if n := strings.Count(come(), "STATUS="); n > 20 {
		t.Errorf("%d status lines", n)
	}
}
