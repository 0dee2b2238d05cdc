package wire

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Status is the status of the appliance, the answer to GET /svcctl/v1/status. It has more than 15 fields: the
// keys of that JSON document, which clients read.
type Status struct {
	// Version is the version of the serving program.
	Version string `json:"version"`
	// NodeName is the name of the box as a Kubernetes node. Endpoints with this node name are local.
	NodeName string `json:"nodeName"`
	// Packaged is set where systemd runs the units of the package.
	Packaged Packaged `json:"packaged,omitempty"`
	// Started is the start of the appliance, in UTC.
	Started time.Time `json:"started"`
	// Ready is set once every source was read and everything accepted by then is in the kernel.
	Ready bool `json:"ready"`
	// Reason is why the appliance is not ready or not synced; "" if it is, or if a change is merely being applied.
	Reason string `json:"reason,omitempty"`
	// Synced means that everything accepted so far is in the kernel, unchanged by other
	// programs.
	Synced   bool     `json:"synced"`
	Revision Revision `json:"revision"`
	// Sources are the watched directories in the order of the flags.
	Sources []Source `json:"sources"`
	Counts  Counts   `json:"counts"`
	// LastTransaction is the newest committed transaction; nil before the first.
	LastTransaction *Transaction `json:"lastTransaction,omitempty"`
	// Problems lists the errors and warnings about objects and files, sorted by file, line and object.
	Problems []Problem `json:"problems"`
	// Verdict summarizes the states and problems of all Services.
	Verdict Verdict `json:"verdict"`
	Kernel  Kernel  `json:"kernel"`
	// ForeignChanges counts the transactions of other programs that touched our tables
	// since the start.
	ForeignChanges uint64 `json:"foreignChanges"`
	// RulesAway is set while a change of our tables by another program is not repaired yet.
	RulesAway bool `json:"rulesAway,omitempty"`
	// HeldRemovals is the number of Services that were removed from the manifests but stay in the kernel until the removal is confirmed, because so
	// many were removed at once.
	HeldRemovals int `json:"heldRemovals,omitempty"`
	// PendingRemovals is the number of Services that were removed from the manifests and will be removed from the kernel within two seconds, unless
	// they return or too many more are removed.
	PendingRemovals int `json:"pendingRemovals,omitempty"`
	// UnknownFrontends is the number of frontends (address and port, or node port) that the kernel serves although no object declares them. They stay
	// in the kernel until their removal is confirmed.
	UnknownFrontends int `json:"unknownFrontends,omitempty"`
	// Trial is the pending trial, or one that was rolled back and still holds files back; nil if there is none.
	Trial *Trial `json:"trial,omitempty"`
	// Rollout is the rollout that is under way, nil if there is none.
	Rollout *Rollout `json:"rollout,omitempty"`
	// Fleet is the state of the box as a member of its fleet; nil when it belongs to none.
	Fleet *Fleet `json:"fleet,omitempty"`
}

// Revision counts accepted changes. It also grows over restarts, and stays below 2^53, so
// that every JSON reader keeps it exact.
type Revision struct {
	Accepted   uint64 `json:"accepted"`   // the newest change accepted
	Programmed uint64 `json:"programmed"` // the newest change that is in the kernel
}

// The states of a Source.
const (
	SourceOK          = "ok"          // read completely
	SourceReading     = "reading"     // not read completely yet
	SourceStandby     = "standby"     // another box of the fleet reads it
	SourceDiffers     = "differs"     // the content of another generation is in force, and this box may not read the source
	SourceBehind      = "behind"      // content of a higher generation is in force
	SourceUnavailable = "unavailable" // cannot be read: what it held last stays in force
)

// Source is a watched directory.
type Source struct {
	Dir   string `json:"dir"`
	State string `json:"state"`           // ok, reading or unavailable; in a fleet also standby, differs or behind
	Files int    `json:"files"`           // manifest files in it
	Error string `json:"error,omitempty"` // why it is unavailable
	// Name is the name of the directory in a fleet, the same on all boxes; "" outside of a fleet. Reader is the box that reads it; "" if none does,
	// or if it is unknown.
	Name   string `json:"name,omitempty"`
	Reader string `json:"reader,omitempty"`
}

// Counts are numbers of objects and endpoints.
type Counts struct {
	Services     int `json:"services"`
	ServicePorts int `json:"servicePorts"`
	Frontends    int `json:"frontends"` // each an address, protocol and port, or a node port
	Endpoints    int `json:"endpoints"` // number of usable endpoints, each counted once per Service port
	VIPs         int `json:"vips"`
}

// Transaction is one commit to the kernel.
type Transaction struct {
	At         time.Time `json:"at"`         // time of the kernel's answer, in UTC
	Duration   Duration  `json:"duration"`   // from the first byte sent to the kernel's answer
	Operations int       `json:"operations"` // netlink operations
	Elements   int       `json:"elements"`   // set elements added and deleted
	Generation uint32    `json:"generation"` // generation ID of the ruleset afterwards
}

// The severities of a Problem.
const (
	SeverityError   = "error"   // something was refused or is not in force
	SeverityWarning = "warning" // it is in force, but deserves a look
)

// Problem is an error or a warning about an object or a manifest file.
type Problem struct {
	Object   string `json:"object,omitempty"` // "Service default/web"; empty: the file as a whole
	File     string `json:"file,omitempty"`
	Line     int    `json:"line,omitempty"`   // from 1
	Column   int    `json:"column,omitempty"` // from 1
	Field    string `json:"field,omitempty"`  // "spec.ports[0].port"
	Reason   string `json:"reason"`           // one word for programs: "FieldValueInvalid", "Conflict"
	Message  string `json:"message"`
	Severity string `json:"severity"` // error or warning
	// Cause identifies a cause that problems of several objects can share. For endpoints that are down it lists them, each as "10.1.2.12:8080
	// (connection refused)", joined by "; ".
	Cause string `json:"cause,omitempty"`
}

// String returns the problem on one line: "web.yaml:12:9: Service default/web:
// spec.ports[0].port: message". It escapes unprintable characters, because names and
// values come from files.
func (p Problem) String() string {
	var parts []string
	place := p.File
	if p.File != "" && p.Line > 0 {
		place += ":" + strconv.Itoa(p.Line)
		if p.Column > 0 {
			place += ":" + strconv.Itoa(p.Column)
		}
	}
	severity := ""
	if p.Severity == SeverityWarning {
		severity = SeverityWarning
	}
	field := p.Field
	if strings.Contains(p.Message, strconv.Quote(field)) || strings.HasPrefix(p.Message, field+":") {
		field = "" // the message names it itself
	}
	for _, part := range []string{place, severity, p.Object, field, p.Message} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	return printable(strings.Join(parts, ": "))
}

// printable escapes characters that would break a line or a terminal.
func printable(s string) string {
	if strings.IndexFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) < 0 {
		return s
	}
	quoted := strconv.QuoteToGraphic(s)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
}

// Kernel has the release and the features of the host's kernel.
type Kernel struct {
	Release  string   `json:"release"`            // uname -r
	Features []string `json:"features,omitempty"` // optional features in use, sorted
	Missing  []string `json:"missing,omitempty"`  // optional features that the kernel lacks, sorted
}

// Released counts what `svcctl confirm --removals` removed.
type Released struct {
	Services int `json:"services"` // number of removed Services
	// Files counts the files whose objects were released.
	Files int `json:"files,omitempty"`
	// Frontends is the number of released frontends (address and port, or node port) of unknown Services.
	Frontends int `json:"frontends,omitempty"`
}

// Errors returns the number of problems with severity error.
func (s *Status) Errors() int {
	n := 0
	for _, p := range s.Problems {
		if p.Severity == SeverityError {
			n++
		}
	}
	return n
}

// Worst returns the severity of the worst problem; "" without any.
func (s *Status) Worst() (worst string) {
	for i := range s.Problems {
		if severity := s.Problems[i].Severity; severity == SeverityError || worst == "" {
			worst = severity
		}
	}
	return worst
}

// Duration is a time.Duration in Go's syntax in JSON: "1.25ms".
type Duration time.Duration

// String returns the duration in Go's syntax.
func (d Duration) String() string { return time.Duration(d).String() }

// MarshalJSON implements json.Marshaler.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(d.String()) }

// UnmarshalJSON implements json.Unmarshaler.
func (d *Duration) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	v, err := time.ParseDuration(s)
	*d = Duration(v)
	return err
}

// Grouped returns a number with its digits grouped: "12,345".
func Grouped(n int) string {
	text := strconv.Itoa(n)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// Count returns a number with its noun: "1 Service", "12,345 Services".
func Count(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return Grouped(n) + " " + noun
}

// Rate formats a rate per second, with one decimal if it is below 10: "0", "3.4", "12,345".
func Rate(r float64) string {
	if r == 0 || r >= 10 {
		return Grouped(int(r + 0.5))
	}
	return strconv.FormatFloat(r, 'f', 1, 64)
}

// First joins the first elements of a list, at most the given number, followed by the number of the rest: "a, b and 3 more".
func First[T any](all []T, most int) string {
	texts := make([]string, min(len(all), most))
	for i := range texts {
		texts[i] = fmt.Sprint(all[i])
	}
	text := strings.Join(texts, ", ")
	if more := len(all) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// Binary returns a number of bytes for people, of up to four digits, with a binary prefix: "1.5" and "K"; "900" and "".
func Binary(n uint64) (number, prefix string) {
	if n < 1024 {
		return strconv.FormatUint(n, 10), ""
	}
	const prefixes = "KMGTPE"
	value, unit := float64(n)/1024, 0
	for value >= 1024 && unit < len(prefixes)-1 {
		value, unit = value/1024, unit+1
	}
	precision := 0
	if value < 10 {
		precision = 1
	}
	return strconv.FormatFloat(value, 'f', precision, 64), prefixes[unit : unit+1]
}

// Verdict counts the Services by state, and groups the problems by cause.
type Verdict struct {
	// Text is the verdict in one line: "2 of 5 Services do not answer; 1 has a warning".
	Text string `json:"text"`
	// Services is the number of all Services. Each is counted by exactly one of the next five fields, or listed in Settling.
	Services int `json:"services"`
	Fails    int `json:"fails"`   // number of Services that are not Ready because of an error
	Stale    int `json:"stale"`   // number of Services that are Ready in an earlier version, because of an error in the newest
	Idle     int `json:"idle"`    // number of Services that are intentionally not Ready: no endpoints are declared
	Warning  int `json:"warning"` // number of Services that are Ready with a warning
	Answers  int `json:"answers"` // number of Services that are Ready without a problem
	// Unchecked counts the Services that have endpoints and no health check.
	Unchecked int `json:"unchecked"`
	// Groups are the problems by cause, the worst first.
	Groups []ProblemGroup `json:"groups"`
	// Settling lists new Services, as "namespace/name", that still wait for endpoints. They are not Ready, but do not count as a problem yet.
	Settling []string `json:"settling,omitempty"`
}

// The states of Services.
const (
	ServiceAnswers  = "answers"
	ServiceWarning  = "warning"
	ServiceStale    = "stale"
	ServiceFails    = "fails"
	ServiceIdle     = "idle"
	ServiceSettling = "settling"
)

// ByState returns the numbers of Services by their states.
func (v *Verdict) ByState() map[string]int {
	return map[string]int{
		ServiceAnswers: v.Answers, ServiceWarning: v.Warning, ServiceStale: v.Stale, ServiceFails: v.Fails, ServiceIdle: v.Idle,
		ServiceSettling: v.Services - v.Answers - v.Warning - v.Stale - v.Fails - v.Idle,
	}
}

// ProblemGroup is all problems with one cause.
type ProblemGroup struct {
	Severity string `json:"severity"` // of the worst problem
	Reason   string `json:"reason"`   // of the worst problem
	Text     string `json:"text"`
	// Next is the next step for the user, usually a command; "" if Text has it.
	Next string `json:"next,omitempty"`
	// Place is the file and line that declare the object: "web.yaml:7".
	Place string `json:"place,omitempty"`
	// Since is when the oldest of the problems occurred, as observed by this process.
	Since time.Time `json:"since,omitzero"`
	// Services lists the first of the Services concerned, as "namespace/name", starting with those that fail. Concerned is the number of all of them.
	Services  []string `json:"services,omitempty"`
	Concerned int      `json:"concerned,omitempty"`
	// Problems is the number of problems in the group. Details describes the first problems that Text does not describe.
	Problems int      `json:"problems"`
	Details  []string `json:"details,omitempty"`
}

// The types of the conditions of a Service.
const (
	ConditionReady      = "Ready"      // every requested port and address serves clients
	ConditionProgrammed = "Programmed" // the newest version is in the kernel of this box
)

// Packaged is set if systemd runs the units of the svcctl package on the box. Advice to the user then names these units instead of svcctl commands.
type Packaged bool

// choose returns unit if p is set, otherwise command.
func (p Packaged) choose(unit, command string) string {
	if p {
		return unit
	}
	return command
}

// Serve returns the command that starts the appliance.
func (p Packaged) Serve() string { return p.choose("`systemctl start svcctl`", "`svcctl serve`") }

// Announce returns the command that starts the announcer.
func (p Packaged) Announce() string {
	return p.choose("`systemctl enable --now svcctl-announce`", "`svcctl announce`")
}

// Discover returns the command that starts the process that follows endpoints of providers.
func (p Packaged) Discover() string {
	return p.choose("`systemctl enable --now svcctl-discover`", "`svcctl discover`")
}

// AnnounceFlags returns where flags of the announcer are given.
func (p Packaged) AnnounceFlags() string {
	return p.choose("in ExecStart= by `systemctl edit svcctl-announce`", "of `svcctl announce`")
}

// Pool returns the setting with the pools of load balancer IPs.
func (p Packaged) Pool() string {
	return p.choose("loadBalancerPool in /etc/svcctl/svcctl.yaml", "--load-balancer-pool")
}

// Sysctl returns how kernel settings get a value now and at each boot.
func (p Packaged) Sysctl(value string, settings ...string) string {
	value = "=" + value
	if p {
		return "write " + strings.Join(settings, value+" and ") + value + " into /etc/sysctl.d/60-svcctl.conf, unless it is there, and run `systemctl restart svcctl-sysctl`"
	}
	return "run `sysctl -w " + strings.Join(settings, value+" ") + value + "`, and put it into /etc/sysctl.d"
}
