package rest

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
)

const eventsPath = "/api/v1/namespaces/default/events"

func TestEventsOfBothGroups(t *testing.T) {
	w := newWorld(t)
	newEvents := "/apis/events.k8s.io/v1/namespaces/default/events"
	// As the events broadcaster of client-go writes them: created, then a series.
	o := w.does(http.StatusCreated, "POST", newEvents, `{"metadata":{"name":"e.1"},"eventTime":"2026-03-01T12:00:00.000001Z","reportingController":"c","reportingInstance":"i","action":"A","reason":"R","regarding":{"kind":"Service","namespace":"default","name":"web"},"note":"hello","type":"Warning"}`)
	if o["note"] != "hello" || o["apiVersion"] != "events.k8s.io/v1" {
		t.Error(o)
	}
	o = w.does(http.StatusOK, "PATCH", newEvents+"/e.1", `{"series":{"count":2,"lastObservedTime":"2026-03-01T12:00:01.000000Z"}}`, asStrategic)
	if at(o, "series", "count") != 2.0 || o["note"] != "hello" {
		t.Error(o)
	}
	o = w.get(eventsPath + "/e.1")
	if o["message"] != "hello" || at(o, "involvedObject", "name") != "web" || at(o, "series", "count") != 2.0 || o["apiVersion"] != "v1" {
		t.Error(o)
	}
	o = w.does(http.StatusOK, "PATCH", eventsPath+"/e.1", `{"count":3,"message":"again"}`, asMerge)
	if o["count"] != 3.0 {
		t.Error(o)
	}
	if o = w.get(newEvents + "/e.1"); o["note"] != "again" || o["deprecatedCount"] != 3.0 {
		t.Error(o)
	}
	w.does(http.StatusUnprocessableEntity, "POST", eventsPath, `{"metadata":{"name":"e.2"},"involvedObject":{"namespace":"other"}}`)
	w.does(http.StatusOK, "DELETE", newEvents+"/e.1", "")
}

func event(name string, last time.Time) string {
	return fmt.Sprintf(`{"metadata":{"name":%q},"involvedObject":{"namespace":"default"},"firstTimestamp":%q,"lastTimestamp":%[2]q}`, name, last.Format(time.RFC3339))
}

func TestEventsGo(t *testing.T) {
	w := newWorld(t)
	w.does(http.StatusCreated, "POST", eventsPath, event("old", noon))
	w.does(http.StatusCreated, "POST", eventsPath, event("future", noon.Add(24*time.Hour)))
	now := noon.Add(eventLife)
	w.server.now = func() time.Time { return now }
	w.does(http.StatusCreated, "POST", eventsPath, event("new", noon.Add(eventLife/2)))
	if err := w.server.sweepEvents(); err != nil {
		t.Fatal(err)
	}
	if got := names(w.get(eventsPath)); got != "future new old" {
		t.Error("too early:", got)
	}
	now = now.Add(time.Second)
	if err := w.server.sweepEvents(); err != nil {
		t.Fatal(err)
	}
	if got := names(w.get(eventsPath)); got != "new" {
		t.Error("left:", got)
	}
}

func TestEventsAreCapped(t *testing.T) {
	w := newWorld(t)
	var writes []store.Write
	for i := range maxEvents {
		o := read(t, fmt.Sprintf(`{"kind":"Event","apiVersion":"v1","metadata":{"name":"a%05d"},"lastTimestamp":"2026-03-01T12:00:00Z"}`, i))
		writes = append(writes, store.Write{Ref: object.RefOf(o), Object: o, Create: true})
	}
	if _, err := w.store.Write(writes...); err != nil {
		t.Fatal(err)
	}
	for i := range eventSlack + 1 {
		w.does(http.StatusCreated, "POST", eventsPath, event(fmt.Sprintf("b%05d", i), noon.Add(time.Minute)))
	}
	if items, _ := w.get(eventsPath)["items"].([]any); len(items) > maxEvents+2 {
		t.Errorf("%d events", len(items))
	}
	if w.ask("GET", eventsPath+"/a00000").Code != http.StatusNotFound || w.ask("GET", eventsPath+"/b00000").Code != http.StatusOK {
		t.Error("not the oldest have gone")
	}
}
