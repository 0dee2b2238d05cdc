package fake

import (
	"fmt"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/nft"
)

func deleteTimeout(t *nft.Table, name string) error {
	if _, there := t.Timeouts[name]; !there {
		return fmt.Errorf("no timeout %s: %w", name, unix.ENOENT)
	}
	for _, c := range t.Chains {
		for _, r := range c.Rules {
			if s, is := setTimeout(r); is && s.Timeout.Name() == name {
				return fmt.Errorf("timeout %s is in use by a rule of chain %s: %w", name, c.Name, unix.EBUSY)
			}
		}
	}
	delete(t.Timeouts, name)
	return nil
}

// missingTimeout names the timeout of a rule that is not there.
func missingTimeout(t *nft.Table, r nft.Rule) (name string, missing bool) {
	s, is := setTimeout(r)
	if !is {
		return "", false
	}
	_, there := t.Timeouts[s.Timeout.Name()]
	return s.Timeout.Name(), !there
}

func setTimeout(r nft.Rule) (nft.SetTimeout, bool) {
	for _, s := range r {
		if s, is := s.(nft.SetTimeout); is {
			return s, true
		}
	}
	return nft.SetTimeout{}, false
}
