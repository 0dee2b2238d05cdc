package object

import (
	"encoding/json"
	"time"
)

// microTime is the layout of a MicroTime (metav1.RFC3339Micro).
const microTime = "2006-01-02T15:04:05.000000Z07:00"

// MicroTime is meta/v1 MicroTime: a time that is written with microseconds, in UTC.
// The zero value is written as null.
type MicroTime struct{ time.Time }

// MarshalJSON implements json.Marshaler.
func (t MicroTime) MarshalJSON() ([]byte, error) {
	if t.IsZero() {
		return []byte("null"), nil
	}
	return json.Marshal(t.UTC().Format(microTime))
}

// UnmarshalJSON implements json.Unmarshaler. It takes RFC 3339 with any number of
// decimals; what is finer than a microsecond is cut off.
func (t *MicroTime) UnmarshalJSON(b []byte) error {
	t.Time = time.Time{}
	if string(b) == "null" {
		return nil
	}
	if err := t.Time.UnmarshalJSON(b); err != nil {
		return err
	}
	t.Time = t.Truncate(time.Microsecond)
	return nil
}
