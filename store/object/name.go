package object

import (
	"fmt"
	"regexp"
	"strings"
)

// The patterns are part of the texts, and the texts are those of apimachinery
// (util/validation and api/validate/content, v0.36).
const (
	dns1123Label     = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
	dns1123Subdomain = dns1123Label + `(\.` + dns1123Label + ")*"
	dns1035Label     = "[a-z]([-a-z0-9]*[a-z0-9])?"
	labelKeyName     = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
	labelValue       = "(" + labelKeyName + ")?"

	dns1123LabelText = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', " +
		"and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '" + dns1123Label + "')"
	dns1123SubdomainText = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', " +
		"and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '" + dns1123Subdomain + "')"
	dns1035LabelText = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, " +
		"and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '" + dns1035Label + "')"
	labelKeyText = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character " +
		"(e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '" + labelKeyName + "')"
	labelValueText = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', " +
		"and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '" + labelValue + "')"

	maxLabel     = 63  // RFC 1035 section 2.3.4
	maxSubdomain = 253 // RFC 1035 section 2.3.4, without the length bytes at both ends
	maxPortName  = 15  // RFC 6335 section 5.1
)

var (
	dns1123LabelRE     = regexp.MustCompile("^" + dns1123Label + "$")
	dns1123SubdomainRE = regexp.MustCompile("^" + dns1123Subdomain + "$")
	dns1035LabelRE     = regexp.MustCompile("^" + dns1035Label + "$")
	labelKeyNameRE     = regexp.MustCompile("^" + labelKeyName + "$")
	labelValueRE       = regexp.MustCompile("^" + labelValue + "$")
	portNameRE         = regexp.MustCompile("^[-a-z0-9]+$")
)

// The functions below say what is wrong with a value; nothing when it is right.

// NameProblems returns the problems of the name of an object, or of a host (RFC 1123).
func NameProblems(name string) []string { return dns1123SubdomainProblems(name) }

// matchProblems checks length, then form.
func matchProblems(value string, longest int, re *regexp.Regexp, text string) []string {
	var problems []string
	if len(value) > longest {
		problems = append(problems, maxBytesText(longest))
	} else if isPlain(value) {
		return nil
	}
	if !re.MatchString(value) {
		problems = append(problems, text)
	}
	return problems
}

// isPlain reports whether a value is of the form that nearly all have, which every pattern
// above matches: a start would spend more time in them than in anything else here.
func isPlain(value string) bool {
	last := len(value) - 1
	for i := range len(value) {
		b := value[i]
		letter, rest := b >= 'a' && b <= 'z', b >= '0' && b <= '9' || b == '-' && i < last
		if !letter && (i == 0 || !rest) {
			return false
		}
	}
	return last >= 0
}

// isPlainSubdomain reports whether a name is made of plain ones, with dots between them.
func isPlainSubdomain(value string) bool {
	for label := range strings.SplitSeq(value, ".") {
		if !isPlain(label) {
			return false
		}
	}
	return true
}

func maxBytesText(n int) string { return fmt.Sprintf("must be no more than %d bytes", n) }

func dns1123LabelProblems(value string) []string {
	problems := matchProblems(value, maxLabel, dns1123LabelRE, dns1123LabelText)
	if last := len(problems) - 1; last >= 0 && problems[last] == dns1123LabelText && dns1123SubdomainRE.MatchString(value) {
		problems[last] = "must not contain dots"
	}
	return problems
}

func dns1123SubdomainProblems(value string) []string {
	if len(value) <= maxSubdomain && isPlainSubdomain(value) {
		return nil
	}
	return matchProblems(value, maxSubdomain, dns1123SubdomainRE, dns1123SubdomainText)
}

func dns1035LabelProblems(value string) []string {
	return matchProblems(value, maxLabel, dns1035LabelRE, dns1035LabelText)
}

func labelValueProblems(value string) []string {
	return matchProblems(value, maxLabel, labelValueRE, labelValueText)
}

// labelKeyProblems is for "name" and "example.com/name", which Kubernetes also calls
// a qualified name.
func labelKeyProblems(value string) []string {
	var problems []string
	name := value
	if prefix, rest, found := strings.Cut(value, "/"); found {
		if strings.Contains(rest, "/") {
			return []string{"a valid label key " + labelKeyText + " with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"}
		}
		name = rest
		if prefix == "" {
			problems = append(problems, "prefix part must be non-empty")
		} else {
			for _, problem := range dns1123SubdomainProblems(prefix) {
				problems = append(problems, "prefix part "+problem)
			}
		}
	}
	if name == "" {
		problems = append(problems, "name part must be non-empty")
	}
	for _, problem := range matchProblems(name, maxLabel, labelKeyNameRE, labelKeyText) {
		problems = append(problems, "name part "+problem)
	}
	return problems
}

// portNameProblems is for the name of a port as a targetPort, an IANA service name
// (RFC 6335 section 5.1) in lower case.
func portNameProblems(value string) []string {
	problems := matchProblems(value, maxPortName, portNameRE,
		"must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)")
	if !strings.ContainsAny(value, "abcdefghijklmnopqrstuvwxyz") {
		problems = append(problems, "must contain at least one letter (a-z)")
	}
	if strings.Contains(value, "--") {
		problems = append(problems, "must not contain consecutive hyphens")
	}
	if strings.HasPrefix(value, "-") || strings.HasSuffix(value, "-") {
		problems = append(problems, "must not begin or end with a hyphen")
	}
	return problems
}

func portNumberProblems(n int32) []string {
	if n < 1 || n > 65535 {
		return []string{"must be between 1 and 65535, inclusive"}
	}
	return nil
}
