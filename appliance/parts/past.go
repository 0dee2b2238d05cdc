package parts

import (
	"net/netip"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/health"
	"svcctl.io/svcctl/appliance/history"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/store/object"
)

// checkedKey is what the history has of an endpoint that is checked.
func checkedKey(c *resolve.Checked) history.Key {
	return history.Key{Kind: history.KindEndpoint, Object: object.ServiceRef(c.Port.Service).String(), What: c.Target.Addr.String() + " " + c.Text}
}

// deadKey is what the history has of an endpoint without a check, and stateDead its state when it accepts no connection.
func deadKey(endpoint netip.AddrPort) history.Key {
	return history.Key{Kind: history.KindEndpoint, What: endpoint.String()}
}

const stateDead = "dead"

// noteHealth keeps since when an endpoint is down, or is not any more.
func noteHealth(b *history.Book, c *resolve.Checked, state health.State, v health.Verdict) {
	at := v.Since
	if at.IsZero() {
		at = time.Now()
	}
	if state == health.Down {
		b.Note(checkedKey(c), wire.HealthDown, v.Last.Why, at)
	} else {
		b.Note(checkedKey(c), "", "", at)
	}
}

// pastOf is the state that a Target had before this process.
func pastOf(b *history.Book, k history.Key) health.Past {
	switch t, known := b.Last(k); {
	case !known:
		return health.Past{}
	case t.State == "":
		return health.Past{State: health.Up, Since: t.At}
	default:
		return health.Past{State: health.Down, Since: t.At}
	}
}

// deadBefore is how an endpoint is dead that was out before this process.
func deadBefore(b *history.Book, endpoint netip.AddrPort) health.Dead {
	t, _ := b.Last(deadKey(endpoint))
	if t.State != stateDead {
		return health.Dead{Why: "it was out before this start"}
	}
	b.Note(t.Key, stateDead, t.Why, t.At)
	return health.DeadOf(health.Verdict{Last: health.Result{Outcome: health.Refused, Why: t.Why}, Since: t.At})
}
