package fleet

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/store/engine"
)

// longestSetting bounds the value of a setting in a message, in bytes.
const longestSetting = 120

// agree reports whether two documents of settings are equal.
func agree(a, b json.RawMessage) bool {
	return bytes.Equal(a, b) || json.Valid(a) && json.Valid(b) && reflect.DeepEqual(fieldsOf(a), fieldsOf(b))
}

// SettingLines are settings as they are given on a command line, one each: "--service-node-port-range 30000-32767". flags has the
// flag of each field, and is what Config.Flags is; a field without one is named itself.
func SettingLines(settings json.RawMessage, flags map[string]string) (lines []string) {
	fields := fieldsOf(settings)
	for _, field := range slices.Sorted(maps.Keys(fields)) {
		line := flagOf(field, flags)
		if text := settingText(fields[field]); text != "true" { // a bool flag needs no value
			line += " " + text
		}
		lines = append(lines, line)
	}
	return lines
}

// differences names the settings that a box and its fleet do not have in common, with both values.
func differences(here, there json.RawMessage, flags map[string]string) string {
	a, b := fieldsOf(here), fieldsOf(there)
	all := maps.Clone(a)
	maps.Copy(all, b)
	var texts []string
	for _, field := range slices.Sorted(maps.Keys(all)) {
		if x, y := settingText(a[field]), settingText(b[field]); x != y {
			texts = append(texts, fmt.Sprintf("%s is %s here and %s in the fleet", flagOf(field, flags), shortened(x), shortened(y)))
		}
	}
	if texts == nil {
		return "they have another form" // another version has written them
	}
	return strings.Join(texts, "; ")
}

// fieldsOf are the fields of a JSON object; none when it is not one.
func fieldsOf(settings json.RawMessage) map[string]any {
	fields := map[string]any{}
	if json.Unmarshal(settings, &fields) != nil || fields == nil {
		return map[string]any{}
	}
	return fields
}

func flagOf(field string, flags map[string]string) string {
	if flag := flags[field]; flag != "" {
		return "--" + flag
	}
	return field
}

// settingText is a value as a flag takes it; "": there is none.
func settingText(value any) string {
	switch v := value.(type) {
	case nil:
		return ""
	case []any:
		texts := make([]string, len(v))
		for i := range v {
			texts[i] = fmt.Sprint(v[i])
		}
		return strings.Join(texts, ",")
	}
	return fmt.Sprint(value)
}

func shortened(text string) string {
	switch {
	case text == "":
		return "not set"
	case text == "true":
		return "set"
	case len(text) > longestSetting:
		return text[:longestSetting] + "..."
	}
	return text
}

// Kind is the state of a box in its fleet.
type Kind string

// The kinds of states.
const (
	Following Kind = "Following" // all is well
	CutOff    Kind = "CutOff"    // etcd does not answer
	Waiting   Kind = "Waiting"   // the box has no replica, and has not read the objects of its fleet yet
	Lagging   Kind = "Lagging"   // etcd answers, and commits do not arrive
	WentBack  Kind = "WentBack"  // etcd is older than the state in force, or has another history
	OtherOne  Kind = "OtherFleet"
	Emptied   Kind = "Emptied"  // etcd has no such fleet
	Damaged   Kind = "Damaged"  // the objects do not fit the digest
	Differs   Kind = "Differs"  // the box has other settings than its fleet
	TooNew    Kind = "TooNew"   // a newer version has written records that this one cannot read
	Namesake  Kind = "Namesake" // another box has the name
	// KeyMissing means that a Secret, or a key that boxes share, is sealed by a key that the box does not have.
	KeyMissing Kind = "KeyMissing"
)

// State is the state of a box as a member of its fleet.
type State struct {
	Kind Kind
	// Why has the reason and the next step; "" while all is well.
	Why   string
	Since time.Time
	// Revision is the revision of the newest commit that was followed; Of that of the newest in
	// etcd, as of the last answer.
	Revision, Of uint64
	Epoch        uint64
	// Answered is the time of etcd's last answer.
	Answered time.Time
	// Asked is set once etcd has answered since the start, or its time was up.
	Asked bool
	// Writer is the box that runs the controllers, "" when it is not known.
	Writer string
	// Replica is the error of writing the replica, nil if there is none.
	Replica error
	// Unreported is why etcd refuses the report of this box; "": it does not, or Kind is the reason.
	Unreported string
	// Foreign names the keys of objects that another program has written or removed in etcd; "": none. They are not followed.
	Foreign string
}

// Held reports whether the content of etcd is not taken over until an operator confirms it.
func (s *State) Held() bool {
	switch s.Kind {
	case WentBack, OtherOne, Emptied, Damaged:
		return true
	}
	return false
}

// Follows reports whether the box follows the commits of etcd, so that it has their outcome.
func (s *State) Follows() bool {
	switch s.Kind {
	case Following, Differs, KeyMissing, Namesake:
		return true
	}
	return false
}

// state is the State of a box with its causes, under position.mu.
type state struct {
	State // without the fields of other parts
	// differs lists the settings that differ from the fleet's; "": they agree.
	differs string
	// unreadable names a Secret or shared key that cannot be opened, with the time; "": all can. blind is set when there is a
	// Secret among them.
	unreadable      string
	unreadableSince time.Time
	blind           bool
	silent          silence
}

// silence has the failures before the heartbeat has decided that the box is cut off, so that later calls fail at once. Any
// answer of the origin ends it.
type silence struct {
	read  error // why the last question was not answered
	write error // why the last commit was not
}

// refusal is why nothing may be committed; nil: it may.
func (s *state) refusal() error {
	switch {
	case s.Kind != Following && s.Kind != Lagging:
	case s.differs != "":
		return &engine.AwayError{Why: s.differs}
	case s.blind:
		return &engine.AwayError{Why: s.unreadable, Since: s.unreadableSince}
	default:
		return nil
	}
	return &engine.AwayError{Why: s.Why, Since: s.Since}
}
