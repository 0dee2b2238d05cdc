package advertise

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/object"
)

const (
	bgpPort = 179
	// restartTime is for how long routers keep routes with enableGracefulRestart, as in FRR.
	restartTime = 120 * time.Second
	// The defaults of a BFDProfile, as in MetalLB.
	bfdInterval   = 300 * time.Millisecond
	bfdMultiplier = 3
	bfdMinTTL     = 254
)

// addPeer has a session with a peer, unless something of it cannot be done.
func (p *planner) addPeer(o *object.BGPPeer) {
	s := &o.Spec
	if !p.here(s.NodeSelectors) {
		return
	}
	if s.VRF != "" {
		p.refuse(o, "spec.vrf", "the peer gets no session: routes of a VRF are not read here; leave it out, or run `svcctl announce` in that VRF")
		return
	}
	if other := slices.IndexFunc(p.Config.Peers, func(c wire.PeerConfig) bool { return c.Name == o.Metadata.Name }); other >= 0 {
		p.refuse(o, "metadata.name", "another namespace has a BGPPeer of this name, and this one gets no session: give it another name")
		return
	}
	c := wire.PeerConfig{
		Name: o.Metadata.Name, Interface: s.Interface, Source: s.SourceAddress, RouterID: s.RouterID,
		LocalAS: uint32(s.MyASN), RemoteAS: uint32(s.PeerASN), Dynamic: s.DynamicASN, IPv4: true, IPv6: true,
		Connect: durationOf(s.ConnectTime), MultiHop: s.EBGPMultiHop, Password: s.Password,
	}
	if s.LocalASN != 0 {
		c.LocalAS = uint32(s.LocalASN)
	}
	if addr, err := netip.ParseAddr(s.PeerAddress); err == nil {
		port := cmp.Or(uint16(s.PeerPort), bgpPort)
		c.Address = netip.AddrPortFrom(addr, port).String()
		if s.DisableMP {
			c.IPv4, c.IPv6 = addr.Is4(), addr.Is6()
		}
	}
	if s.HoldTime != "" {
		if c.Hold = durationOf(s.HoldTime); c.Hold == 0 {
			c.Hold = -1
		}
		if c.Hold > 0 && c.Hold < 3*time.Second {
			p.refuse(o, "spec.holdTime", "%s is below 3s, which BGP does not allow: the peer gets no session", s.HoldTime)
			return
		}
	}
	if c.Keepalive = durationOf(s.KeepaliveTime); c.Hold > 0 && c.Keepalive >= c.Hold {
		p.warn(o, "spec.keepaliveTime", "%s is not below the hold time %s: a third of that is used", s.KeepaliveTime, s.HoldTime)
		c.Keepalive = 0
	}
	if s.EnableGracefulRestart {
		c.Restart = restartTime
	}
	switch text := o.Metadata.Annotations[annotation.TTLSecurity]; {
	case text == "1" && !s.EBGPMultiHop:
		c.TTLSecurity = 1
	case text != "":
		p.warn(o, annotation.Field(annotation.TTLSecurity), "%q has no effect: only 1 is served, for peers one hop away", text)
	}
	if !p.addSecret(o, &c) || !p.addProfile(o, &c) {
		return
	}
	p.Config.Peers = append(p.Config.Peers, c)
	p.peers[o.Metadata.Namespace] = append(p.peers[o.Metadata.Namespace], c.Name)
}

// durationOf is a duration that was validated; 0 of nothing.
func durationOf(text string) time.Duration {
	d, _ := time.ParseDuration(text)
	return d
}

// addSecret finds the password; false: the Secret that the peer names is not there.
func (p *planner) addSecret(o *object.BGPPeer, c *wire.PeerConfig) bool {
	ref := o.Spec.PasswordSecret
	if ref.Name == "" {
		return true
	}
	if ref.Namespace == "" {
		ref.Namespace = o.Metadata.Namespace
	}
	for _, secret := range p.objects.Secrets {
		if secret.Metadata.Namespace == ref.Namespace && secret.Metadata.Name == ref.Name && len(secret.Data["password"]) > 0 {
			c.Password = string(secret.Data["password"])
			return true
		}
	}
	p.refuse(o, "spec.passwordSecret", "there is no Secret %s in the namespace %s with a key password: the peer gets no session; create it, as with `kubectl create secret generic`", ref.Name, ref.Namespace)
	return false
}

// addProfile finds the BFD profile; false: the one that the peer names is not there.
func (p *planner) addProfile(o *object.BGPPeer, c *wire.PeerConfig) bool {
	name := o.Spec.BFDProfile
	if name == "" {
		return true
	}
	i := slices.IndexFunc(p.objects.Profiles, func(b *object.BFDProfile) bool {
		return b.Metadata.Namespace == o.Metadata.Namespace && b.Metadata.Name == name
	})
	if i < 0 {
		p.refuse(o, "spec.bfdProfile", "there is no BFDProfile %s in the namespace %s: the peer gets no session", name, o.Metadata.Namespace)
		return false
	}
	b := p.objects.Profiles[i].Spec
	if b.EchoMode != nil && *b.EchoMode || b.EchoInterval != nil {
		p.warn(p.objects.Profiles[i], "spec.echoMode", "there is no echo mode: echoMode and echoInterval have no effect, and the control packets of the intervals watch the peer")
	}
	value := func(n *int32, otherwise int) int {
		if n == nil {
			return otherwise
		}
		return int(*n)
	}
	milliseconds := func(n *int32) time.Duration {
		return time.Duration(value(n, int(bfdInterval/time.Millisecond))) * time.Millisecond
	}
	c.BFD = &wire.BFDConfig{
		Transmit: milliseconds(b.TransmitInterval), Receive: milliseconds(b.ReceiveInterval),
		Multiplier: value(b.DetectMultiplier, bfdMultiplier), Passive: b.PassiveMode != nil && *b.PassiveMode, MinTTL: value(b.MinimumTTL, bfdMinTTL),
	}
	return true
}
