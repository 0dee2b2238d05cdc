package prober

import (
	"fmt"

	"svcctl.io/svcctl/appliance/health"
)

// onDemand opens what asks with the first probe, and again after it was closed. While it cannot be
// opened, as where this host is out of descriptors, no probe is made, and each says why.
type onDemand struct {
	open func(done func([]answer)) (asker, error)
	done func([]answer)
	asks asker // nil: not open
}

// begin implements asker.
func (o *onDemand) begin(probes []probe) {
	if len(probes) == 0 {
		return
	}
	if o.asks == nil {
		asks, err := o.open(o.done)
		if err != nil {
			answers := make([]answer, len(probes))
			for i, p := range probes {
				answers[i] = answer{target: p.target, serial: p.serial, result: failed(health.Void, fmt.Sprintf("not asked: %v", err))}
			}
			o.done(answers)
			return
		}
		o.asks = asks
	}
	o.asks.begin(probes)
}

// expire implements asker.
func (o *onDemand) expire(serials []uint64) {
	if o.asks != nil {
		o.asks.expire(serials)
	}
}

// close implements asker. The next probe opens it again.
func (o *onDemand) close() {
	if o.asks != nil {
		o.asks.close()
		o.asks = nil
	}
}
