package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

// warnsOf reports whether explain of a Service, and doctor, say that neighbors get no answer for an address, and fails when only one
// of them does.
func (b *box) warnsOf(f family, service, addr string) (warns bool, err error) {
	network := f.pick("192.0.2.0/24", "2001:db8::/64")
	text := fmt.Sprintf("%s lies in the network %s of ext0, and no interface of the box has it: neighbors there get no answer to %s,",
		addr, network, f.pick("ARP", "NDP"))
	advice := "run `svcctl announce`; or give it to an interface: " + f.pick("`ip address add "+addr+"/32 dev ext0`", "`ip -6 address add "+addr+"/128 dev ext0`")
	page, _, _ := b.svcctl.Svcctl("explain", "svc/"+f.name(service))
	explained := strings.Join(strings.Fields(page), " ") // as if it were not wrapped
	out, errOut, _ := b.svcctl.Svcctl("doctor", "--data-dir", b.svcctl.Data, "-o", "json")
	var report struct {
		Findings []struct{ Check, Level, Message, Advice string }
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		return false, fmt.Errorf("svcctl doctor: %w: %s%s", err, out, errOut)
	}
	found := false
	for _, finding := range report.Findings {
		if finding.Check == "neighbors" && strings.HasPrefix(finding.Message, text) {
			found = true
			if service := "(Service default/" + f.name(service) + ")"; finding.Level != "warning" || !strings.HasSuffix(finding.Message, service) || !strings.HasPrefix(finding.Advice, advice) {
				return false, fmt.Errorf("doctor says %+v, want a warning that names %s and advises: %s", finding, service, advice)
			}
		}
	}
	warns = strings.Contains(explained, text)
	if warns != found || warns != strings.Contains(explained, advice) {
		return false, fmt.Errorf("of %s doctor warns: %t, with %q; explain says:\n%s", addr, found, text, page)
	}
	return warns, nil
}

// An address of a Service in the network of an interface that neighbors get no answer for is told by explain and doctor, for as long as
// that is so.
func Test520_address_that_nobody_answers_for_is_told(t *testing.T) {
	b, announcer := announced(t)
	becomes := func(t *testing.T, b *box, f family, when string, want bool) {
		t.Helper()
		eventually(t, time.Minute, func() error {
			warns, err := b.warnsOf(f, "web", f.segmentVIP(1))
			if err == nil && warns != want {
				err = fmt.Errorf("%s: explain and doctor warn: %t, want %t", when, warns, want)
			}
			if mac := macOf(t, b.RTR, "box", f, f.segmentVIP(1)); err == nil && (mac == "") != want {
				err = fmt.Errorf("%s: neighbors get the answer %q", when, mac)
			}
			return err
		})
	}
	held := func(t *testing.T, b *box, f family, verb string, args ...string) {
		t.Helper()
		address := append([]string{f.pick("-4", "-6"), "address", verb, f.segmentVIP(1) + f.pick("/32", "/128"), "dev", "ext0"}, args...)
		if _, errOut, err := b.GW1.Run("ip", address...); err != nil {
			t.Fatal(err, errOut)
		}
	}
	b.each(t, func(t *testing.T, b *box, f family) {
		becomes(t, b, f, "at first", true)
		if warns, err := b.warnsOf(f, "routed", f.lb(4)); warns || err != nil {
			t.Errorf("an address in no network of the box is warned of: %t, %v", warns, err)
		}
		held(t, b, f, "add", strings.Fields(f.pick("", "nodad"))...)
		becomes(t, b, f, "with the address on an interface", false)
		b.ask(t, 1, b.EXT, "tcp", f.at(f.segmentVIP(1), 80))
		held(t, b, f, "del")
		becomes(t, b, f, "without it again", true)
	})
	announcer.Launch()
	b.each(t, func(t *testing.T, b *box, f family) {
		b.becomes(t, f.segmentVIP(1), "l2 ext0 announced")
		becomes(t, b, f, "announced", false)
		b.ask(t, 1, b.EXT, "tcp", f.at(f.segmentVIP(1), 80))
	})
	announcer.Stop()
	b.each(t, func(t *testing.T, b *box, f family) {
		becomes(t, b, f, "with the announcer gone", true)
	})
}
