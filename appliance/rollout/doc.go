// Package rollout decides how a staged rollout goes on: which boxes come next, when they have been watched for long enough, and
// why it stops. It is pure: reports of boxes and the time left come in, the next state goes out.
//
//	next := rollout.Decide(head, left, boxes, concerns)
//	switch next.Do {
//	case rollout.Move:
//		err = objects.Advance(next.Head.Stored(), next.Ends)
//	...
//	}
package rollout
