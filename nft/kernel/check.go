package kernel

import (
	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/nft"
)

// Check asks the kernel whether it would take every operation of a batch, and changes
// nothing. The errors are those of Commit; what the kernel looks at only when a
// transaction succeeds (loops of chains) is not found here.
//
// The batch ends with an operation that is bound to fail, so the kernel undoes all of it.
func (c *Conn) Check(b *nft.Batch, generation uint32) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.check(b, generation)
	if err != nil && !isAnswer(err) {
		c.closeSocket()
	}
	return err
}

func (c *Conn) check(b *nft.Batch, generation uint32) error {
	t, err := c.write(b, generation)
	if err != nil || t.empty() {
		return err
	}
	t.op = len(b.Ops)
	bound := len(t.parts)
	t.message(unix.NFT_MSG_DELTABLE, 0, nft.IPv4)
	t.Text(unix.NFTA_TABLE_NAME, probeTable+"-absent")
	t.End()
	o, err := t.send()
	if _, failed := o.refused[bound]; failed {
		delete(o.refused, bound)
		o.acknowledged = true // as it would be without that operation
	}
	return t.result(o, err, func(op, element int) string { return opText(b.Ops, op, element) })
}
