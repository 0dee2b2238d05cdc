package object

import (
	"fmt"
	"time"
)

// Event is core/v1 Event: something that happened to an object. It has more than 15 fields:
// those of Kubernetes.
type Event struct {
	TypeMeta
	Metadata           ObjectMeta       `json:"metadata"`
	InvolvedObject     ObjectReference  `json:"involvedObject"`
	Reason             string           `json:"reason,omitempty"`
	Message            string           `json:"message,omitempty"`
	Source             EventSource      `json:"source,omitzero"`
	FirstTimestamp     *time.Time       `json:"firstTimestamp,omitempty"`
	LastTimestamp      *time.Time       `json:"lastTimestamp,omitempty"`
	Count              int32            `json:"count,omitempty"`
	Type               string           `json:"type,omitempty"`
	EventTime          *MicroTime       `json:"eventTime,omitempty"`
	Series             *EventSeries     `json:"series,omitempty"`
	Action             string           `json:"action,omitempty"`
	Related            *ObjectReference `json:"related,omitempty"`
	ReportingComponent string           `json:"reportingComponent"`
	ReportingInstance  string           `json:"reportingInstance"`
}

// EventSource is core/v1 EventSource.
type EventSource struct {
	Component string `json:"component,omitempty"`
	Host      string `json:"host,omitempty"`
}

// EventSeries is core/v1 EventSeries and events.k8s.io/v1 EventSeries.
type EventSeries struct {
	Count            int32      `json:"count,omitempty"`
	LastObservedTime *MicroTime `json:"lastObservedTime,omitempty"`
}

// EventView is events.k8s.io/v1 Event: an Event with other names for its fields. It has more than
// 15 fields: those of Kubernetes.
type EventView struct {
	TypeMeta
	Metadata                 ObjectMeta       `json:"metadata"`
	EventTime                *MicroTime       `json:"eventTime,omitempty"`
	Series                   *EventSeries     `json:"series,omitempty"`
	ReportingController      string           `json:"reportingController,omitempty"`
	ReportingInstance        string           `json:"reportingInstance,omitempty"`
	Action                   string           `json:"action,omitempty"`
	Reason                   string           `json:"reason,omitempty"`
	Regarding                ObjectReference  `json:"regarding,omitzero"`
	Related                  *ObjectReference `json:"related,omitempty"`
	Note                     string           `json:"note,omitempty"`
	Type                     string           `json:"type,omitempty"`
	DeprecatedSource         EventSource      `json:"deprecatedSource,omitzero"`
	DeprecatedFirstTimestamp *time.Time       `json:"deprecatedFirstTimestamp,omitempty"`
	DeprecatedLastTimestamp  *time.Time       `json:"deprecatedLastTimestamp,omitempty"`
	DeprecatedCount          int32            `json:"deprecatedCount,omitempty"`
}

// Event.Type.
const (
	EventNormal  = "Normal"
	EventWarning = "Warning"
)

func (o *Event) GetTypeMeta() *TypeMeta     { return &o.TypeMeta }
func (o *Event) GetMeta() *ObjectMeta       { return &o.Metadata }
func (o *EventView) GetTypeMeta() *TypeMeta { return &o.TypeMeta }
func (o *EventView) GetMeta() *ObjectMeta   { return &o.Metadata }

// DeepCopy implements Object.
func (o *Event) DeepCopy() Object { return deepCopy(o) }

// DeepCopy implements Object.
func (o *EventView) DeepCopy() Object { return deepCopy(o) }

// View is the event as events.k8s.io/v1 shows it. It shares nothing with the receiver.
func (o *Event) View() *EventView {
	c := deepCopy(o)
	return &EventView{
		TypeMeta:                 TypeMeta{APIVersion: APIVersionEvents, Kind: KindEvent},
		Metadata:                 c.Metadata,
		EventTime:                c.EventTime,
		Series:                   c.Series,
		ReportingController:      c.ReportingComponent,
		ReportingInstance:        c.ReportingInstance,
		Action:                   c.Action,
		Reason:                   c.Reason,
		Regarding:                c.InvolvedObject,
		Related:                  c.Related,
		Note:                     c.Message,
		Type:                     c.Type,
		DeprecatedSource:         c.Source,
		DeprecatedFirstTimestamp: c.FirstTimestamp,
		DeprecatedLastTimestamp:  c.LastTimestamp,
		DeprecatedCount:          c.Count,
	}
}

// Event is the event as core/v1 shows it, the form that is stored. It shares nothing
// with the receiver.
func (o *EventView) Event() *Event {
	c := deepCopy(o)
	return &Event{
		TypeMeta:           TypeMeta{APIVersion: APIVersionCore, Kind: KindEvent},
		Metadata:           c.Metadata,
		InvolvedObject:     c.Regarding,
		Reason:             c.Reason,
		Message:            c.Note,
		Source:             c.DeprecatedSource,
		FirstTimestamp:     c.DeprecatedFirstTimestamp,
		LastTimestamp:      c.DeprecatedLastTimestamp,
		Count:              c.DeprecatedCount,
		Type:               c.Type,
		EventTime:          c.EventTime,
		Series:             c.Series,
		Action:             c.Action,
		Related:            c.Related,
		ReportingComponent: c.ReportingController,
		ReportingInstance:  c.ReportingInstance,
	}
}

// validateEvent wants an event in the namespace of what it is about; what is about an
// object without one goes to default (ValidateEventCreate of pkg/apis/core/validation).
func validateEvent(o *Event) Errors {
	involved := o.InvolvedObject.Namespace
	if involved == "" {
		involved = defaultNamespace
	}
	if involved != o.Metadata.Namespace {
		return invalid(root("involvedObject.namespace"), o.InvolvedObject.Namespace,
			fmt.Sprintf("does not match event.namespace %q", o.Metadata.Namespace))
	}
	return nil
}
