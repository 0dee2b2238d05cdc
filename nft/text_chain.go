package nft

import (
	"bufio"
	"cmp"
	"fmt"
)

func writeChain(out *bufio.Writer, f Family, c *Chain) {
	out.WriteString("\tchain " + c.Name + " {\n")
	if c.Hook != HookNone {
		out.WriteString("\t\t" + c.baseText() + "\n")
	}
	var line []byte
	for _, r := range c.Rules {
		line = r.appendText(append(line[:0], "\t\t"...), f)
		out.Write(append(line, '\n'))
	}
	out.WriteString("\t}\n")
}

// baseText returns the line of a base chain: type, hook, priority and policy.
func (c *Chain) baseText() string {
	kind := "nat"
	if c.Filter {
		kind = "filter"
	}
	return fmt.Sprintf("type %s hook %s priority %s; policy accept;", kind, c.Hook, c.priorityText())
}

// priorityText names the priority where nft 1.0.6 has a name for it in that hook, and
// for the ten steps around it.
func (c *Chain) priorityText() string {
	const reach = 10
	name, base := "", 0
	switch c.Hook {
	case HookPrerouting:
		name, base = "dstnat", PriorityDstNAT
	case HookPostrouting:
		name, base = "srcnat", PrioritySrcNAT
	}
	switch offset := c.Priority - base; {
	case name == "" || offset < -reach || offset > reach:
		return fmt.Sprint(c.Priority)
	case offset < 0:
		return fmt.Sprintf("%s - %d", name, -offset)
	case offset > 0:
		return fmt.Sprintf("%s + %d", name, offset)
	}
	return name
}

// String is the hook in nft syntax.
func (h Hook) String() string {
	switch h {
	case HookPrerouting:
		return "prerouting"
	case HookInput:
		return "input"
	case HookOutput:
		return "output"
	case HookPostrouting:
		return "postrouting"
	}
	return "none"
}

// compareChains puts base chains last, in the order packets meet them.
func compareChains(a, b *Chain) int {
	return cmp.Or(
		cmp.Compare(a.Hook, b.Hook),
		cmp.Compare(a.Priority, b.Priority),
		compareNames(a.Name, b.Name),
	)
}

// compareNames orders names as people do: pick-2 before pick-10.
func compareNames(a, b string) int {
	for i, j := 0, 0; i < len(a) && j < len(b); {
		if !isDigit(a[i]) || !isDigit(b[j]) {
			if a[i] != b[j] {
				return cmp.Compare(a[i], b[j])
			}
			i, j = i+1, j+1
			continue
		}
		m, n := number(a[i:]), number(b[j:])
		if order := cmp.Or(cmp.Compare(len(m), len(n)), cmp.Compare(m, n)); order != 0 {
			return order
		}
		i, j = i+digits(a[i:]), j+digits(b[j:])
	}
	return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func digits(s string) int {
	n := 0
	for n < len(s) && isDigit(s[n]) {
		n++
	}
	return n
}

// number is the digits that s starts with, without leading zeros: of two such, the
// longer one is the greater.
func number(s string) string {
	end := digits(s)
	start := 0
	for start < end-1 && s[start] == '0' {
		start++
	}
	return s[start:end]
}
