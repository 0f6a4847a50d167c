!> The words of the command line.
module arguments
  use failure, only: refuse
  implicit none
  private

  integer, parameter :: word_length = 4096

  public :: whole, word

contains

  function word(i) result(text)
    integer, intent(in) :: i
    character(:), allocatable :: text
    character(word_length) :: buffer
    integer :: length

    call get_command_argument(i, buffer, length)
    if (length > word_length) call refuse('an argument is too long')
    text = buffer(:length)
  end function word

  !> The whole number that an option has, or a refusal in its name.
  integer function whole(name, text, least)
    character(*), intent(in) :: name, text
    integer, intent(in) :: least
    integer :: code

    read (text, *, iostat=code) whole
    if (code /= 0 .or. verify(text, '0123456789') /= 0) then
      call refuse(name // ' ' // text // ': must be a whole number')
    else if (whole < least) then
      call refuse(name // ' ' // text // ': is too small')
    end if
  end function whole

end module arguments
