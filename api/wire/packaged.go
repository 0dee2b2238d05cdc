package wire

import "strings"

// Packaged is set where systemd runs the units of the package on the box: advice names them then, and else the verbs that
// they run.
type Packaged bool

// Serve returns the command that starts the appliance.
func (p Packaged) Serve() string {
	if p {
		return "`systemctl start svcctl`"
	}
	return "`svcctl serve`"
}

// Announce returns the command that starts the announcer.
func (p Packaged) Announce() string {
	if p {
		return "`systemctl enable --now svcctl-announce`"
	}
	return "`svcctl announce`"
}

// Discover returns the command that starts the process that follows endpoints of providers.
func (p Packaged) Discover() string {
	if p {
		return "`systemctl enable --now svcctl-discover`"
	}
	return "`svcctl discover`"
}

// AnnounceFlags returns where flags of the announcer are given.
func (p Packaged) AnnounceFlags() string {
	if p {
		return "in ExecStart= by `systemctl edit svcctl-announce`"
	}
	return "of `svcctl announce`"
}

// Pool returns the setting with the pools of load balancer IPs.
func (p Packaged) Pool() string {
	if p {
		return "loadBalancerPool in /etc/svcctl/svcctl.yaml"
	}
	return "--load-balancer-pool"
}

// Sysctl returns how kernel settings get a value now and at each boot.
func (p Packaged) Sysctl(value string, settings ...string) string {
	value = "=" + value
	if p {
		return "write " + strings.Join(settings, value+" and ") + value + " into /etc/sysctl.d/60-svcctl.conf, unless it is there, and run `systemctl restart svcctl-sysctl`"
	}
	return "run `sysctl -w " + strings.Join(settings, value+" ") + value + "`, and put it into /etc/sysctl.d"
}
