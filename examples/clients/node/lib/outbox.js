// Calls that wait to be sent, first come first served: so calls of one ordering key never overtake one another.

const FRAME_CALLS = 8_192;
const FRAME_BYTES = 1024 * 1024;

export class Outbox {
  #calls = [];
  #head = 0;
  #live = 0;

  /** Calls that wait. */
  get size() {
    return this.#live;
  }

  add(call) {
    this.#calls.push(call);
    this.#live += 1;
  }

  /** The call was taken back before it was sent: it will not leave. */
  forget() {
    this.#live -= 1;
  }

  /**
   * The calls of the next frame: at most `calls` calls of `bytes` bytes, which is what the window has left. `alone`:
   * nothing is unanswered, so that one call may have more bytes than the window.
   */
  take(calls, bytes, alone) {
    const taken = [];
    let left = Math.min(calls, FRAME_CALLS);
    let room = Math.min(bytes, FRAME_BYTES);
    while (left > 0 && this.#head < this.#calls.length) {
      const call = this.#calls[this.#head];
      if (!call.settled) {
        const size = call.payload.length;
        // A call larger than a frame travels in a frame of its own.
        if (size > room && (taken.length > 0 || (size > bytes && !alone))) break;
        taken.push(call);
        left -= 1;
        room -= size;
        this.#live -= 1;
      }
      this.#head += 1;
    }
    if (this.#head > 1_024 && this.#head * 2 > this.#calls.length) {
      this.#calls = this.#calls.slice(this.#head);
      this.#head = 0;
    }
    return taken;
  }

  /** Takes everything, never to be sent. */
  drain() {
    const left = this.#calls.slice(this.#head).filter((call) => !call.settled);
    this.#calls = [];
    this.#head = this.#live = 0;
    return left;
  }
}
