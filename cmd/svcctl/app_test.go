package main

import (
	"strings"
	"testing"

	"svcctl.io/svcctl/cmd/svcctl/cli"
)

// TestWordsOfOtherTools: a word that is no verb is answered with what does the same, and changes nothing.
func TestWordsOfOtherTools(t *testing.T) {
	for _, tt := range []struct{ args, want string }{
		{"restart", "there is no verb \"restart\": run `systemctl restart svcctl`; rules and connections stay"},
		{"logs", "there is no verb \"logs\": run `journalctl -u svcctl`; `svcctl journal` has changes, health and problems"},
		{"info", "there is no verb \"info\": run `svcctl status`, or `svcctl describe svc/NAME`"},
		{"set", "there is no verb \"set\": run `svcctl edit svc/NAME`"},
		{"svc", "there is no verb \"svc\": run `svcctl get svc`"},
		{"aplly", "there is no verb \"aplly\": did you mean apply?"},
		{"inn", "there is no verb \"inn\": run `svcctl help`"},
		{"confer", "there is no verb \"confer\": run `svcctl help`"},
		{"sttaus", "there is no verb \"sttaus\": did you mean status?"},
		{"ps", "there is no verb \"ps\": run `svcctl get svc -A`"},
		{"explain 2001:db8:1:2:3:4:5:1:30080", "\"2001:db8:1:2:3:4:5:1:30080\" is no address: an IPv6 address with a port is written as [ADDRESS]:PORT"},
		{"health [10.1.2.11]", "\"[10.1.2.11]\" is an address: `svcctl explain [10.1.2.11]` has its Services, and its state"},
		{"out svc/web [10.1.2.11]:80", "\"[10.1.2.11]:80\" is no address of an endpoint: write one as 10.1.2.11, without a port"},
		{"describe shop", "there is no kind \"shop\": write a Service as svc/shop; `svcctl get --help` lists the kinds"},
	} {
		b := newBench()
		code := b.run(strings.Fields(tt.args)...)
		if code != cli.ExitUsage || !strings.HasPrefix(b.err.String(), "svcctl: "+tt.want) || b.out.Len() > 0 {
			t.Errorf("svcctl %s: exit %d, stderr %q, want %q", tt.args, code, b.err.String(), tt.want)
		}
	}
	for word := range elsewhere {
		for _, v := range root().Verbs {
			if v.Name == word {
				t.Errorf("%s is a verb", word)
			}
		}
	}
}
