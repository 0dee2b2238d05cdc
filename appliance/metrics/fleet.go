package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Fleet describes the box as a member of its fleet.
type Fleet struct {
	State string
	// Revision is the newest revision that was followed, Newest the last one seen in etcd.
	Revision, Newest uint64
	// Heard is the time of etcd's last answer.
	Heard     time.Time
	LostRaces uint64
	// Turn is set on the box that runs the controllers for all.
	Turn bool
	// Rollout is the phase of the newest rollout, "" when there was none. RolloutHere says that this box programs the new versions
	// while others do not, RolloutStep and RolloutSteps are the present step, from 1, and their number.
	Rollout                   string
	RolloutHere               bool
	RolloutStep, RolloutSteps int
}

// Fleet shows what read gives, which is asked at each scrape. It is called once, on a box of a fleet.
func (m *Metrics) Fleet(read func() Fleet) {
	m.registry.MustRegister(&fleet{
		read:     read,
		state:    prometheus.NewDesc("svcctl_fleet_state", "1, with the state of this box in its fleet: Following while all is well.", []string{"state"}, nil),
		revision: prometheus.NewDesc("svcctl_fleet_revision", "The newest revision of the fleet that this box has followed.", nil, nil),
		newest:   prometheus.NewDesc("svcctl_fleet_newest_revision", "The newest revision of the fleet, as of etcd's last answer.", nil, nil),
		heard:    prometheus.NewDesc("svcctl_fleet_heard_timestamp_seconds", "When etcd answered last, in seconds since 1970.", nil, nil),
		lost:     prometheus.NewDesc("svcctl_fleet_lost_races_total", "Commits of this box that another box was ahead of, and that were decided anew.", nil, nil),
		phase:    prometheus.NewDesc("svcctl_rollout_phase", "1, with the phase of the newest rollout in the fleet: Stopped when it waits for somebody. Absent when there was none.", []string{"phase"}, nil),
		step:     prometheus.NewDesc("svcctl_rollout_step", "The step of the newest rollout, from 1; 0 while its changes are being written.", nil, nil),
		steps:    prometheus.NewDesc("svcctl_rollout_steps", "The number of steps of the newest rollout.", nil, nil),
		here:     prometheus.NewDesc("svcctl_rollout_new_versions", "1 while this box programs the new versions of a rollout that is under way.", nil, nil),
		turn:     prometheus.NewDesc("svcctl_fleet_turn", "1 while this box runs the controllers for its fleet.", nil, nil),
	})
}

type fleet struct {
	read                                       func() Fleet
	state, revision, newest, heard, lost, turn *prometheus.Desc
	phase, step, steps, here                   *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (f *fleet) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{f.state, f.revision, f.newest, f.heard, f.lost, f.turn, f.phase, f.step, f.steps, f.here} {
		descs <- d
	}
}

// Collect implements prometheus.Collector.
func (f *fleet) Collect(all chan<- prometheus.Metric) {
	now := f.read()
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		all <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	gauge(f.state, 1, now.State)
	gauge(f.revision, float64(now.Revision))
	gauge(f.newest, float64(now.Newest))
	if !now.Heard.IsZero() {
		gauge(f.heard, float64(now.Heard.UnixMilli())/1000)
	}
	is := map[bool]float64{true: 1}
	gauge(f.turn, is[now.Turn])
	if now.Rollout != "" {
		gauge(f.phase, 1, now.Rollout)
		gauge(f.step, float64(now.RolloutStep))
		gauge(f.steps, float64(now.RolloutSteps))
		gauge(f.here, is[now.RolloutHere])
	}
	all <- prometheus.MustNewConstMetric(f.lost, prometheus.CounterValue, float64(now.LostRaces))
}
