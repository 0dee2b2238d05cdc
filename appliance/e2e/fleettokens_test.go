package e2e

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// cutOff has a box and etcd not hear of each other, until heal is called.
func (f *fleet) cutOff(n int) (heal func()) {
	f.t.Helper()
	f.hosts[n].LoadNft("table ip cut {\nchain o { type filter hook output priority -300; oifname ctl0 tcp dport 2379 drop; }\n" +
		"chain i { type filter hook input priority -300; iifname ctl0 tcp sport 2379 drop; }\n}\n")
	f.state(n, "CutOff")
	return func() {
		f.t.Helper()
		f.hosts[n].LoadNft("delete table ip cut\n")
		f.state(n, "Following")
	}
}

// authority is the CA in the kubeconfig of a box.
func (f *fleet) authority(n int) string {
	f.t.Helper()
	out, errOut, code := f.boxes[n].Svcctl("admin", "kubeconfig")
	found := regexp.MustCompile(`certificate-authority-data: (\S+)`).FindStringSubmatch(out)
	if code != 0 || found == nil {
		f.t.Fatalf("svcctl admin kubeconfig on box %d: exit %d: %s%s", n+1, code, out, errOut)
	}
	text, err := base64.StdEncoding.DecodeString(found[1])
	if err != nil {
		f.t.Fatal(err)
	}
	return string(text)
}

// Test612_a_token_of_one_box_opens_all: boxes that have the key of the fleet have one CA, and a token of one is one of all.
// Revoked on one box it ends on all; a box that is cut off says that it cannot know, and one that revokes
// meanwhile ends tokens at once on itself and says that the others do not know.
func Test612_a_token_of_one_box_opens_all(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	key := file("fleet.key", keyText(1))
	at := func(n int) string { return fmt.Sprintf("10.9.0.%d:6443", n+1) }
	f := newFleet(t, 2, func(n int) []string { return []string{"--fleet-key-file", key, "--listen", at(n)} })
	eventually(t, time.Minute, func() error {
		if f.authority(0) != f.authority(1) {
			return fmt.Errorf("each box has a CA of its own")
		}
		return nil
	})
	ca := file("ca.pem", f.authority(0))
	token := func(n int) string {
		t.Helper()
		var out, errOut string
		eventually(t, time.Minute, func() error {
			var code int
			if out, errOut, code = f.boxes[n].Svcctl("admin", "token"); code != 0 {
				return fmt.Errorf("svcctl admin token on box %d: exit %d: %s%s", n+1, code, out, errOut)
			}
			return nil
		})
		return file("token", out)
	}
	opens := func(n int, token string) error {
		out, errOut, err := f.etcd.Run(binary, "get", "namespaces", "--server", at(n), "--token-file", token, "--ca", ca)
		if err == nil && !strings.Contains(out, "default") {
			err = fmt.Errorf("no Namespaces")
		}
		if err != nil {
			return fmt.Errorf("box %d: %w: %s%s", n+1, err, out, errOut)
		}
		return nil
	}
	is := func(n int, token string, valid bool) {
		t.Helper()
		eventually(t, time.Minute, func() error {
			err := opens(n, token)
			switch {
			case valid:
				return err
			case err == nil:
				return fmt.Errorf("box %d takes a token that was revoked", n+1)
			case !strings.Contains(err.Error(), "Unauthorized"):
				return err
			}
			return nil
		})
	}
	first := token(0)
	is(0, first, true)
	is(1, first, true)
	if out, errOut, code := f.boxes[1].Svcctl("admin", "token", "--revoke-all"); code != 0 {
		t.Fatalf("revoke on box 2: exit %d: %s%s", code, out, errOut)
	}
	is(0, first, false)
	is(1, first, false)

	second := token(1)
	is(0, second, true)
	heal := f.cutOff(1)
	f.says(1, []string{"status"}, "tokens that were revoked on another box")
	if out, errOut, code := f.boxes[0].Svcctl("admin", "token", "--revoke-all"); code != 0 {
		t.Fatalf("revoke on box 1: exit %d: %s%s", code, out, errOut)
	}
	is(0, second, false)
	if err := opens(1, second); err != nil {
		t.Errorf("a box that is cut off knew what happened elsewhere: %v", err)
	}
	heal()
	is(1, second, false)

	third := token(0)
	is(1, third, true)
	heal = f.cutOff(1)
	if out, errOut, code := f.boxes[1].Svcctl("admin", "token", "--revoke-all"); code != 1 || !strings.Contains(errOut, "not everywhere yet") {
		t.Errorf("revoke on a box that is cut off: exit %d: %s%s", code, out, errOut)
	}
	is(0, third, true)
	is(1, third, false)
	f.boxes[1].Stop()
	f.boxes[1].Start()
	is(1, third, false)
	if out, errOut, code := f.boxes[1].Svcctl("admin", "token"); code == 0 || !strings.Contains(errOut, "all tokens were revoked on this box") {
		t.Errorf("a token that the others would not take: exit %d: %s%s", code, out, errOut)
	}
	heal()
	is(0, third, false)
	fourth := token(1)
	is(0, fourth, true)
	is(1, fourth, true)
	if got := f.authority(1); got != f.authority(0) {
		t.Error("the CA changed with the tokens")
	}
}
