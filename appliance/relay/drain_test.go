package relay

import "testing"

// A drain waits for the connections that are open then, however many come after, and each one once.
func TestDrain(t *testing.T) {
	d := newDraining()
	isOver := func(over <-chan struct{}) bool {
		select {
		case <-over:
			return true
		default:
			return false
		}
	}
	if open, over := d.leave(); open != 0 || !isOver(over) {
		t.Errorf("%d open, over: %t, and there was none", open, isOver(over))
	}
	first, second := d.begin(), d.begin()
	open, over := d.leave()
	if open != 2 || isOver(over) {
		t.Errorf("%d open, over: %t, want 2", open, isOver(over))
	}
	third := d.begin()
	_, last := d.leave()
	second()
	if isOver(over) {
		t.Error("over, and one is open")
	}
	first()
	if !isOver(over) || isOver(last) {
		t.Error("the first two have ended, and the third one has not")
	}
	third()
	if !isOver(last) {
		t.Error("not over, and nothing is open")
	}
}
