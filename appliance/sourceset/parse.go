package sourceset

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"

	"svcctl.io/svcctl/watch"
)

// maxFile bounds a file, in bytes: a million prefixes.
const maxFile = 48 << 20

// maxShown bounds what an error quotes of a line, in bytes.
const maxShown = 60

// ReadFile reads the prefixes of a file. The error names the line that is wrong; line and text
// of a refused one are in it.
func ReadFile(path string) ([]netip.Prefix, error) {
	data, err := watch.ReadFile(path, maxFile)
	if err != nil {
		return nil, err
	}
	return Parse(data)
}

// Parse reads the prefixes of a file's content. The error is about the first line that is wrong.
func Parse(data []byte) ([]netip.Prefix, error) {
	prefixes := make([]netip.Prefix, 0, bytes.Count(data, []byte{'\n'})+1)
	number := 0
	for line := range bytes.Lines(data) {
		number++
		text := string(line)
		if i := strings.IndexAny(text, "#;"); i >= 0 {
			text = text[:i]
		}
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		p, err := parsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		prefixes = append(prefixes, p)
	}
	return prefixes, nil
}

func parsePrefix(text string) (p netip.Prefix, err error) {
	if strings.Contains(text, "/") {
		p, err = netip.ParsePrefix(text)
	} else if addr, e := netip.ParseAddr(text); e == nil && addr.Zone() == "" {
		p = netip.PrefixFrom(addr, addr.BitLen())
	} else {
		err = fmt.Errorf("no address")
	}
	switch {
	case err != nil, p.Addr().Is4In6():
		if len(text) > maxShown {
			text = text[:maxShown]
		}
		return p, fmt.Errorf("%q is no prefix and no address: write one a line, as 192.0.2.0/24 or 2001:db8::/32", text)
	case p != p.Masked():
		return p, fmt.Errorf("%s has bits behind its length: write %s, or %s/%d for the one address", p, p.Masked(), p.Addr(), p.Addr().BitLen())
	}
	return p, nil
}
