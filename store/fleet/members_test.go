package fleet_test

import (
	"fmt"
	"testing"

	"svcctl.io/svcctl/store/fleet"
)

// Beside the member that has the fleet there are one that only learns and one that has no majority. Boxes ask all of them in turn, and nothing
// fails for that.
func Test654_members_of_etcd_that_cannot_serve(t *testing.T) {
	c := startEtcd(t, 1)
	c.init()
	c.learner()
	c.alone()
	a, b := c.join("a"), c.join("b")
	eventually(t, "a box has the turn", func() bool { return a.engine.HasTurn() || b.engine.HasTurn() })
	writer := a
	if b.engine.HasTurn() {
		writer = b
	}
	lost := 0
	for n := range 40 {
		for _, on := range []*box{a, b} {
			if err := on.create(fmt.Sprintf("%s%d", on.cfg.Box, n)); err != nil {
				t.Fatalf("write %d on %s: %v", n, on.cfg.Box, err)
			}
			if err := on.engine.Fresh(t.Context()); err != nil {
				t.Fatalf("read %d on %s: %v", n, on.cfg.Box, err)
			}
			if s := on.engine.State(); s.Kind != fleet.Following {
				t.Fatalf("%s is %s: %s", on.cfg.Box, s.Kind, s.Why)
			}
		}
		if !writer.engine.HasTurn() {
			lost++
		}
	}
	same(t, a, b)
}

// learner adds a member that does not vote.
func (c *cluster) learner() {
	c.t.Helper()
	ports := freePorts(c.t, 2)
	url, peer := fmt.Sprintf("http://127.0.0.1:%d", ports[0]), fmt.Sprintf("http://127.0.0.1:%d", ports[1])
	if _, err := c.client().MemberAddAsLearner(c.t.Context(), []string{peer}); err != nil {
		c.t.Fatal(err)
	}
	c.add(url, peer, fmt.Sprintf("m0=%s,learner=%s", c.peer(0), peer), "--name", "learner", "--initial-cluster-state", "existing")
}

// alone adds a member whose others are not there.
func (c *cluster) alone() {
	c.t.Helper()
	ports := freePorts(c.t, 3)
	url, peer := fmt.Sprintf("http://127.0.0.1:%d", ports[0]), fmt.Sprintf("http://127.0.0.1:%d", ports[1])
	c.add(url, peer, fmt.Sprintf("alone=%s,other=http://127.0.0.1:%d", peer, ports[2]), "--name", "alone")
}

func (c *cluster) add(url, peer, all string, more ...string) {
	dir := c.t.TempDir()
	c.urls, c.dirs, c.members = append(c.urls, url), append(c.dirs, dir), append(c.members, nil)
	c.args = append(c.args, append([]string{
		c.args[0][0], "--unsafe-no-fsync", "--data-dir", dir, "--listen-client-urls", url, "--advertise-client-urls", url,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", all,
	}, more...))
	c.start(len(c.members) - 1)
}

// peer is the URL of a member for the others.
func (c *cluster) peer(i int) string {
	for n, arg := range c.args[i] {
		if arg == "--listen-peer-urls" {
			return c.args[i][n+1]
		}
	}
	return ""
}
